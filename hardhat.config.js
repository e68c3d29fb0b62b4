// The contracts are compiled by the npm compiler of the lock file: nothing is downloaded at build time.
import path from "node:path";
import { fileURLToPath } from "node:url";
import { defineConfig } from "hardhat/config";

const here = path.dirname(fileURLToPath(import.meta.url));

export default defineConfig({
  solidity: {
    version: "0.8.37",
    path: path.join(here, "node_modules", "solc", "soljson.js"),
    settings: {
      evmVersion: "cancun",
      optimizer: { enabled: true, runs: 200 },
      metadata: { bytecodeHash: "none" },
    },
  },
  paths: { sources: "./contracts", tests: { solidity: "./contracts/test" } },
  networks: {
    // `hardhat node`: a block a second, and one at once for a transaction. Several blocks may share a second, so that a
    // burst of transactions never pushes the chain's clock ahead of the real one.
    node: {
      type: "edr-simulated",
      chainType: "l1",
      chainId: 31337,
      allowBlocksWithSameTimestamp: true,
      mining: { auto: true, interval: 1000 },
    },
  },
  test: { solidity: { fuzz: { runs: 64 }, invariant: { runs: 8, depth: 40, failOnRevert: false }, fsPermissions: { readFile: ["./tests/vectors"] , readDirectory: ["./tests/vectors"] } } },
});
