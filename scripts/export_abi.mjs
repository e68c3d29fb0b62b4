// Writes {abi, bytecode} of each deployable contract to sentinel_market/chain/abi/, byte for byte the same on every machine.
// Before a contract exists, the ABI of its interface stands in, with empty bytecode.
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";

const root = path.join(path.dirname(fileURLToPath(import.meta.url)), "..");
const names = ["MarketAccess", "TestToken", "MarketParams", "StakeVault", "JobMarket", "JobEscrow", "ViolationCourt"];
const out = path.join(root, "sentinel_market", "chain", "abi");
const read = (...parts) => {
  const file = path.join(root, "artifacts", "contracts", ...parts);
  return fs.existsSync(file) ? JSON.parse(fs.readFileSync(file, "utf8")) : null;
};
const key = (item) => `${item.type}:${item.name ?? ""}:${JSON.stringify(item.inputs ?? [])}`;

fs.mkdirSync(out, { recursive: true });
for (const name of names) {
  const artifact = read(`${name}.sol`, `${name}.json`) ?? read("interfaces", `I${name}.sol`, `I${name}.json`);
  if (artifact === null) continue;
  const abi = [...artifact.abi].sort((a, b) => (key(a) < key(b) ? -1 : 1));
  fs.writeFileSync(path.join(out, `${name}.json`), `${JSON.stringify({ contractName: name, abi, bytecode: artifact.bytecode }, null, 1)}\n`);
}
