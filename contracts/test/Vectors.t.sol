// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {JobEscrow} from "../JobEscrow.sol";
import {JobMarket} from "../JobMarket.sol";
import {StakeVault} from "../StakeVault.sol";
import {ViolationCourt} from "../ViolationCourt.sol";
import {ViolationKind} from "../interfaces/IViolationCourt.sol";
import {MarketFixture} from "./MarketFixture.sol";

/// @notice The digests that the contracts compute are those that eth-account wrote into tests/vectors/eip712.json.
contract VectorsTest is MarketFixture {
    string internal json;
    uint256 internal constant CASES = 4;

    function setUp() public {
        deploy();
        json = vm.readFile("tests/vectors/eip712.json");
    }

    /// @dev The code of `from` at the address of the vector's domain: it then computes that domain.
    function placed(string memory name, address from) internal returns (address where) {
        string memory base = string.concat("$.domains.", name);
        vm.chainId(vm.parseJsonUint(json, string.concat(base, ".chainId")));
        where = vm.parseJsonAddress(json, string.concat(base, ".verifyingContract"));
        vm.etch(where, from.code);
    }

    function path(string memory kind, uint256 i) internal pure returns (string memory) {
        bytes1 digit = bytes1(uint8(0x30 + i));
        return string.concat("$.vectors.", kind, ".cases[", string(abi.encodePacked(digit)), "]");
    }

    function num(string memory base, string memory name) internal view returns (uint256) {
        return vm.parseJsonUint(json, string.concat(base, ".message.", name));
    }

    function word(string memory base, string memory name) internal view returns (bytes32) {
        return vm.parseJsonBytes32(json, string.concat(base, ".message.", name));
    }

    function who(string memory base, string memory name) internal view returns (address) {
        return vm.parseJsonAddress(json, string.concat(base, ".message.", name));
    }

    function same(string memory base, bytes32 digest) internal view {
        eq(digest, vm.parseJsonBytes32(json, string.concat(base, ".digest")), base);
        bytes memory signature = vm.parseJsonBytes(json, string.concat(base, ".signature"));
        eq(ECDSA.recover(digest, signature), vm.parseJsonAddress(json, "$.signer"), base);
    }

    function test_Settlement() public {
        JobEscrow c = JobEscrow(placed("JobEscrow", address(escrow)));
        for (uint256 i = 0; i < CASES; ++i) {
            string memory b = path("Settlement", i);
            same(
                b,
                c.settlementDigest(
                    num(b, "jobId"),
                    uint64(num(b, "epoch")),
                    word(b, "root"),
                    uint128(num(b, "totalCumulative")),
                    word(b, "stepRecordHash")
                )
            );
        }
    }

    function test_SignerGrant() public {
        StakeVault c = StakeVault(placed("StakeVault", address(vault)));
        for (uint256 i = 0; i < CASES; ++i) {
            string memory b = path("SignerGrant", i);
            same(
                b,
                c.grantDigest(who(b, "account"), who(b, "signer"), num(b, "nonce"), uint64(num(b, "deadline")))
            );
        }
    }

    function test_ViolationReport() public {
        ViolationCourt c = ViolationCourt(placed("ViolationCourt", address(court)));
        for (uint256 i = 0; i < CASES; ++i) {
            string memory b = path("ViolationReport", i);
            // A kind that the contract does not know cannot be passed to it: such vectors are for the signers only.
            if (num(b, "kind") > uint8(type(ViolationKind).max)) continue;
            same(
                b,
                c.reportDigest(
                    word(b, "caseId"),
                    who(b, "verifier"),
                    ViolationKind(num(b, "kind")),
                    word(b, "commitmentHash"),
                    word(b, "evidenceHash"),
                    uint64(num(b, "deadline"))
                )
            );
        }
    }

    function test_JobMarketDomain() public {
        JobMarket c = JobMarket(placed("JobMarket", address(market)));
        eq(
            c.domainSeparator(),
            vm.parseJsonBytes32(json, "$.domains.JobMarket.separator"),
            "the domain of all off-chain messages"
        );
    }

    function test_JobFinish() public {
        JobMarket c = JobMarket(placed("JobMarket", address(market)));
        for (uint256 i = 0; i < CASES; ++i) {
            string memory b = path("JobFinish", i);
            same(b, c.finishDigest(num(b, "jobId"), uint64(num(b, "epoch")), word(b, "stepRecordHash")));
        }
    }
}
