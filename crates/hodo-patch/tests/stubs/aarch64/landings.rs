//! Probes on instructions where calls land in guarded memory: the jump comes after them.

use std::ops::Range;
use std::sync::atomic::AtomicU64;

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameHdr, NativeEndian, Register, RegisterRule,
    UnwindContext, UnwindSection, Vendor,
};
use hodo_codegen::native::detour::{Action, Counter, When};
use hodo_isa::{Signing, Via};
use hodo_patch::{Copied, Image, Island, Patches, Probe, Recording, Region, Sites, Traced, Used};
use hodo_plan::model::{Mode, PlannedFunction, SitePlan, Tactic};
use hodo_trace::format::{counters::CHAIN_SIZE, tcb};

use crate::signed::{hodo_test_signed, hodo_test_signed_jump};
use crate::world::{World, address, site, timed};

/// Where the island and the function are in the tests that execute nothing.
const BASE: u64 = 0x5555_4000_0000;
const FUNCTION: u64 = 0x5555_4080_0000;
const SIZE: u64 = 1 << 20;
/// `x30`, and what says whether it is signed.
const LINK: Register = Register(30);
const SIGNED: Register = Register(34);

/// The instructions that sign, those that take the signature back, `bti c`, and one that may come after them.
const PACIASP: u32 = 0xD503_233F;
const PACIBSP: u32 = 0xD503_237F;
const AUTIASP: u32 = 0xD503_23BF;
const AUTIBSP: u32 = 0xD503_23FF;
const BTI: u32 = 0xD503_245F;
const FRAME: u32 = 0xA9BF_7BFD;

/// A region whose first instruction stays in front of the jump.
pub fn landing(function: u64) -> SitePlan {
    SitePlan {
        displaced: function..function + 8,
        ..site("", function as usize + 4, 4, Via::Nothing).plan
    }
}

/// A probe at an address that counts in a word after the address in [`tcb::FRAMES`], a word that nobody uses if the
/// depth is not limited.
pub fn count(addr: u64, when: When, word: i32) -> Probe {
    Probe {
        addr,
        flags_dead: false,
        free: 0,
        when,
        action: Action::Count(Counter::Shared {
            base: u32::try_from(tcb::FRAMES).expect("a small number"),
            at: word * 8,
        }),
    }
}

/// The function, if it is traced as well: its own site comes after the landing instruction, or is a breakpoint there.
pub fn traced(function: u64, signing: Signing, at_start: bool) -> PlannedFunction {
    let mut plan = site("", function as usize + 4, 4, Via::Nothing).plan;
    plan.signing = signing;
    if at_start {
        plan.tactic = Tactic::Trap;
        plan.patch = function;
        plan.displaced = function..function + 4;
        plan.signing = Signing::None;
    }
    plan.mode = Mode::Call;
    PlannedFunction {
        name: "function".to_owned(),
        addr: function,
        size: 0,
        outcome: Ok(plan),
    }
}

/// What was built for two instructions with a probe before each of them.
struct Built {
    patches: Patches,
    /// For which of the program's instructions the stubs stand.
    stubs: Vec<u64>,
    /// The island, and the address of its search table.
    bytes: Vec<u8>,
    header: u64,
}

impl Built {
    fn new(first: u32, when: When, function: Option<&PlannedFunction>) -> Self {
        let code: Vec<u8> = [first, FRAME].map(u32::to_le_bytes).concat();
        let plan = landing(FUNCTION);
        let probes = [
            count(FUNCTION, when, 0),
            count(FUNCTION, When::Hit, 1),
            count(FUNCTION + 4, When::Hit, 2),
        ];
        let region = Region {
            site: &plan,
            probes: &probes,
            function: function.map(|function| Traced {
                function,
                id: 1,
                filter: false,
            }),
        };
        let sites = Sites {
            functions: &[],
            libcalls: &[],
            nops: &[],
            regions: &[region],
        };
        let displaced = |range: Range<u64>| (range == plan.displaced).then_some(&code[..]);
        let image = Image {
            bias: 0,
            code: &displaced,
        };
        let mut island = Island::new(BASE, SIZE, 0);
        let mut patches = Patches::default();
        let recording = Recording::default();
        island.add_module(sites, image, recording, &mut |_| None, &mut patches);
        assert_eq!(patches.failed, []);
        let mut bytes = vec![0; SIZE as usize];
        let added = island.added(Used::default());
        for (at, part) in &added {
            bytes[(at - BASE) as usize..][..part.len()].copy_from_slice(part);
        }
        let stubs = island.stubs.iter().map(|stub| stub.original).collect();
        Self {
            patches,
            stubs,
            bytes,
            header: added[2].0,
        }
    }

    fn word(&self, at: u64) -> u32 {
        let word = self.bytes[(at - BASE) as usize..][..4].try_into();
        u32::from_le_bytes(word.expect("four bytes"))
    }

    /// The copies of an instruction.
    fn copies(&self, original: u64) -> Vec<Copied> {
        let copies = self.patches.copies.iter();
        copies
            .filter(|copied| copied.original == original)
            .collect()
    }

    /// What unwinders find at an instruction: the CFA, the return address and whether that is signed with key A.
    fn row(&self, at: u64) -> (CfaRule<usize>, RegisterRule<usize>, bool) {
        let bases = BaseAddresses::default()
            .set_eh_frame(BASE)
            .set_eh_frame_hdr(self.header);
        let header = &self.bytes[(self.header - BASE) as usize..];
        let header = EhFrameHdr::new(header, NativeEndian).parse(&bases, 8);
        let header = header.expect("a header");
        let table = header.table().expect("a search table");
        let pointer = table.lookup(at, &bases).expect("an entry");
        let mut section = EhFrame::new(&self.bytes, NativeEndian);
        section.set_vendor(Vendor::AArch64);
        let offset = (pointer.direct().expect("a pointer") - BASE) as usize;
        let fde = section.fde_from_offset(&bases, offset.into(), EhFrame::cie_from_offset);
        let fde = fde.expect("an FDE");
        assert!(fde.contains(at), "{at:#x} is in no FDE");
        let mut context = UnwindContext::new();
        let row = fde.unwind_info_for_address(&section, &bases, &mut context, at);
        let row = row.expect("a row");
        let signed = row.register(SIGNED) == RegisterRule::Constant(1);
        (row.cfa().clone(), row.register(LINK), signed)
    }
}

/// A thread that comes by the jump has executed the landing instruction, and nothing of the detour.
#[test]
fn the_entry_of_a_detour_stands_for_what_comes_after_the_landing_instruction() {
    for (first, taken) in [(PACIASP, AUTIASP), (PACIBSP, AUTIBSP)] {
        for when in [When::Hit, When::Return] {
            for function in [None, Some(&traced(FUNCTION, Signing::A, true))] {
                let built = Built::new(first, when, function);
                let copies = built.copies(FUNCTION + 4);
                let [copied, entry] = copies[..] else {
                    panic!("{copies:x?}");
                };
                assert_eq!(built.word(entry.before), taken);
                assert_eq!(entry.copy, copied.copy);
                assert_eq!(built.word(copied.copy), FRAME);
                assert!(!copied.leads && !entry.leads);
                match function {
                    None => assert_eq!(entry.before, built.patches.sites[0].to),
                    // By this, it is found how the function signs.
                    Some(_) => assert_eq!(built.stubs, [FUNCTION + 4]),
                }
                // The landing instruction itself comes after its probes, with a plain return address.
                let copies = built.copies(FUNCTION);
                let [landing] = copies[..] else {
                    panic!("{copies:x?}");
                };
                assert_eq!(built.word(landing.copy), first);
                assert!(entry.before + 4 <= landing.before && landing.before < landing.copy);
                assert!(landing.leads, "the jump comes right after it");
            }
        }
    }
    let built = Built::new(BTI, When::Hit, None);
    let [landing] = built.copies(FUNCTION)[..] else {
        panic!("one copy");
    };
    assert!(landing.leads);
    assert_eq!(landing.before, built.patches.sites[0].to);
    assert_eq!(built.copies(FUNCTION + 4).len(), 1);
}

#[test]
fn unwinders_know_that_the_return_address_is_signed_at_the_entry_of_a_detour() {
    let plain = traced(FUNCTION, Signing::A, false);
    let cases = [
        (When::Return, None),
        (When::Return, Some(&plain)),
        (When::Hit, Some(&plain)),
    ];
    for (when, function) in cases {
        let built = Built::new(PACIASP, when, function);
        let entry = built.copies(FUNCTION + 4)[1].before;
        let (cfa, link, signed) = built.row(entry);
        let stack = CfaRule::RegisterAndOffset {
            register: Register(31),
            offset: 0,
        };
        assert_eq!(cfa, stack, "{when:?}");
        assert_eq!(link, RegisterRule::SameValue, "{when:?}");
        assert!(signed, "{when:?}");
        let (_, link, signed) = built.row(entry + 4);
        assert!(!signed, "{when:?}");
        // A probe that is hit has no frame of its own.
        let expected = match when {
            When::Hit => RegisterRule::Undefined,
            _ => RegisterRule::SameValue,
        };
        assert_eq!(link, expected, "{when:?}");
    }
}

/// Calls and returns are counted, and recorded if the functions are traced, wherever their own sites are.
#[test]
fn entries_and_returns_of_functions_that_sign_are_seen() {
    let functions = [
        (address(hodo_test_signed as *const ()) as u64, Signing::A),
        (
            address(hodo_test_signed_jump as *const ()) as u64,
            Signing::B,
        ),
    ];
    for at_start in [None, Some(false), Some(true)] {
        let counters = [const { AtomicU64::new(0) }; 6];
        let mut world = World::new(timed(), 4);
        let block = world.enter(1);
        world.put(
            block + tcb::FRAMES,
            counters.as_ptr().expose_provenance() as u64,
        );
        // One function jumps to the other, so there are two returns in one frame.
        let entries = vec![0u64; CHAIN_SIZE as usize / 8];
        let list = entries.as_ptr().expose_provenance() as u64;
        world.put(block + tcb::CHAIN_LO, list);
        world.put(block + tcb::CHAIN_TOP, list);
        let plans = functions.map(|(at, _)| landing(at));
        let traced =
            functions.map(|(at, signing)| traced(at, signing, at_start.unwrap_or_default()));
        let ids: Vec<u32> = world
            .names(["signed", "jump"].map(str::to_owned).into_iter())
            .collect();
        let probes = [0, 1].map(|index| {
            let at = functions[index].0;
            let word = index as i32 * 3;
            [
                count(at, When::Hit, word),
                count(at, When::Return, word + 1),
                count(at + 4, When::Hit, word + 2),
            ]
        });
        let regions = [0, 1].map(|index| Region {
            site: &plans[index],
            probes: &probes[index],
            function: at_start.map(|_| Traced {
                function: &traced[index],
                id: ids[index],
                filter: false,
            }),
        });
        let sites = Sites {
            functions: &[],
            libcalls: &[],
            nops: &[],
            regions: &regions,
        };
        world.add_own(sites);
        assert_eq!(hodo_test_signed(3, 4), 15);
        assert_eq!(hodo_test_signed_jump(3, 4), 17);
        world.restore();
        let counts = counters.map(AtomicU64::into_inner);
        assert_eq!(counts, [2, 2, 2, 1, 1, 1], "{at_start:?}");
        let text = match at_start {
            None => "",
            Some(_) => "+signed -signed +jump >signed -jump",
        };
        assert_eq!(world.text(1), text, "{at_start:?}");
    }
}
