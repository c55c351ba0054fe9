//! What the slides leave open, as parameters: each with the default that the rest of this crate uses, and the reason.

/// The immediate of `lrw2spc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Immediate {
    /// Its width: 12 or 20 bits.
    pub bits: u8,
    /// Whether it can be negative.
    pub signed: bool,
    /// What it is multiplied by.
    pub scale: u8,
}

/// What `lrw2spc` loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Constant {
    /// 32 bits, sign-extended: the name's `lrw`.
    Word,
    /// 64 bits: the slide's "64bit value".
    Double,
}

/// Which side of the memory a literal comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The fetch unit reads it, as it reads code.
    Instruction,
    /// A load reads it.
    Data,
}

/// How far the shadow pc moves with each instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advance {
    /// By the instruction's length.
    Length,
    /// By 4: the adder in the slide's picture.
    Four,
}

/// What ends the mode, besides a trap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// A jump, or a branch that is taken.
    Taken,
    /// Any jump or branch, taken or not.
    Branch,
}

/// What a trap keeps of the mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Saved {
    /// `mepc` has the real pc, the new register `mspc` the shadow pc; `mret` restores both.
    Both,
    /// `mepc` has the shadow pc, and the mode is over.
    Shadow,
    /// `mepc` has the real pc, and the mode is over.
    Real,
}

/// What `ecall` and `ebreak` do in the mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// The same as any other trap.
    Trap,
    /// They end the mode, and `mepc` has the shadow pc.
    End,
}

/// What a jump with link writes in the mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkValue {
    /// The address after the original instruction.
    Shadow,
    /// The address after the copy.
    Real,
}

/// What `lrw2spc` does to a reservation of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reservation {
    /// Nothing.
    Kept,
    /// It ends it.
    Lost,
}

/// When interrupts are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupts {
    /// At any instruction.
    Taken,
    /// Not in the mode.
    Held,
}

/// How the front end knows the shadow pc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prediction {
    /// A table remembers what each `lrw2spc` loaded last.
    Table,
    /// It does not: whoever needs it waits.
    Wait,
}

/// How the literal of `c.jall` becomes an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// It is added to the instruction's address.
    Relative,
    /// It is the address.
    Absolute,
}

/// How `c.jall` is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CjallCode {
    /// As a 48-bit instruction: opcode `0011111`, with the link register in bits 11 to 7.
    Long,
    /// As a 16-bit instruction (`c.jr` through the zero register, which is reserved), with a literal after it.
    Short,
}

/// The parameters of both proposals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proposals {
    /// The immediate of `lrw2spc`.
    pub immediate: Immediate,
    /// What it loads.
    pub constant: Constant,
    /// From where literals come.
    pub side: Side,
    /// How the shadow pc advances.
    pub advance: Advance,
    /// What ends the mode.
    pub end: End,
    /// What a trap keeps.
    pub saved: Saved,
    /// `ecall` and `ebreak` in the mode.
    pub calls: Calls,
    /// Return addresses in the mode.
    pub link_value: LinkValue,
    /// What happens to a reservation.
    pub reservation: Reservation,
    /// Interrupts in the mode.
    pub interrupts: Interrupts,
    /// How the front end knows the shadow pc.
    pub prediction: Prediction,
    /// The target of `c.jall`.
    pub target: Target,
    /// Its encoding.
    pub cjall: CjallCode,
    /// Its link register, if the encoding has none.
    pub cjall_link: u8,
}

impl Default for Proposals {
    fn default() -> Self {
        Self {
            immediate: Immediate {
                bits: 12,
                signed: true,
                scale: 1,
            },
            constant: Constant::Double,
            side: Side::Instruction,
            advance: Advance::Length,
            end: End::Taken,
            saved: Saved::Both,
            calls: Calls::Trap,
            link_value: LinkValue::Shadow,
            reservation: Reservation::Kept,
            interrupts: Interrupts::Taken,
            prediction: Prediction::Table,
            target: Target::Relative,
            cjall: CjallCode::Long,
            cjall_link: 1,
        }
    }
}

/// One open point.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    /// What is open.
    pub what: &'static str,
    /// The default.
    pub default: &'static str,
    /// What else the model can do.
    pub other: &'static str,
    /// Why the default is the default.
    pub reason: &'static str,
}

const fn point(
    what: &'static str,
    default: &'static str,
    other: &'static str,
    reason: &'static str,
) -> Point {
    Point {
        what,
        default,
        other,
        reason,
    }
}

/// The open points in the order of the slides.
pub const POINTS: &[Point] = &[
    point(
        "`lrw2spc`: encoding",
        "custom-0 (`0x0B`), the format of `addi`, other fields 0",
        "the format of `lui` (20 bits)",
        "It takes nothing from the standard set, and a processor without it traps.",
    ),
    point(
        "its immediate",
        "12 bits, signed, in bytes",
        "20 bits; unsigned; scaled by 2, 4 or 8",
        "The literal is after the copy, which is shorter than 2 KiB. A scale needs an aligned pc.",
    ),
    point(
        "what it loads",
        "64 bits",
        "32 bits, sign-extended",
        "32 bits reach neither programs nor modules: only the lowest and highest 2 GiB.",
    ),
    point(
        "from which side",
        "instruction",
        "data",
        "Code pages need not be readable, and a load may end a reservation.",
    ),
    point(
        "the step of the shadow pc",
        "the instruction's length",
        "4",
        "With 4, everything after a compressed instruction is wrong.",
    ),
    point(
        "the end of the mode",
        "a jump or a taken branch",
        "any branch",
        "After a branch that is not taken, more copies follow.",
    ),
    point(
        "a trap: what is kept",
        "`mepc` = real pc, `mspc` = shadow pc with bit 0 as flag",
        "only one of them",
        "The shadow pc may be in overwritten bytes; the real pc alone loses the mode. See below.",
    ),
    point(
        "`mtval`",
        "as without the mode: the data's address; for `ebreak`, the real pc",
        "",
        "Handlers of faults look at the data's address only.",
    ),
    point(
        "`mret`",
        "restores the mode if `mspc` has the flag, and clears `mspc`",
        "",
        "A handler that knows nothing of the mode resumes correctly if nothing in it uses the mode.",
    ),
    point(
        "context switch, signals",
        "`mspc` belongs to the thread, like `mepc`",
        "",
        "Another thread's `mret` would otherwise enter the mode of this one.",
    ),
    point(
        "nested probes",
        "a trap ends the mode in the handler; `lrw2spc` in the mode loads a new value, at the real pc",
        "",
        "The author of the detour knows where the literal is, not what the shadow pc is.",
    ),
    point(
        "`ecall`, `ebreak` in the mode",
        "as any trap; a kernel that adds 4 to `mepc` adds 4 to `mspc`, too",
        "they end the mode, `mepc` = shadow pc",
        "If they end the mode, they must be the last instruction that the jump overwrites.",
    ),
    point(
        "the link value",
        "after the original instruction",
        "after the copy",
        "Unwinders and functions that look at their caller see the program's addresses.",
    ),
    point(
        "`lr`, `sc`",
        "the reservation is kept",
        "it ends",
        "Nothing in the mode touches memory. The jump to the detour still makes the loop unconstrained.",
    ),
    point(
        "interrupts between `lrw2spc` and the copy",
        "taken",
        "held until the mode ends",
        "A trap keeps the mode anyway, and a held interrupt would wait for a page fault.",
    ),
    point(
        "prediction",
        "a table by the address of `lrw2spc`",
        "none: a reader of the pc waits",
        "Targets are predicted by the real pc as always; only checking them needs the shadow pc.",
    ),
    point(
        "`c.jall`: encoding",
        "a 48-bit instruction, opcode `0011111`, link register in bits 11 to 7",
        "a reserved 16-bit one (`0x8002`), link register fixed",
        "Disassemblers and decoders step over the literal, and the register can be chosen.",
    ),
    point(
        "its literal (\"31 + uimm\")",
        "32 bits, added to the address of the instruction",
        "the address itself, sign-extended",
        "Position-independent code is in neither the lowest nor the highest 2 GiB. `uimm` is read as 0.",
    ),
    point(
        "its link register",
        "any, named by the instruction; `ra` if there is no room",
        "",
        "At an entry, `ra` is live and `t0` is not: with `t0`, nothing has to be saved.",
    ),
];
