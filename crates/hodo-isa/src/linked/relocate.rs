//! Moves instructions to another address: what does not depend on the instruction set. The [`Rules`] of a set say what
//! becomes of its instructions and write them.

use alloc::vec::Vec;

use crate::buffer::OutOfRange;
use crate::effects::Flow;
use crate::relocate::{Link, Moved, RelocateError};

/// Moved code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relocated {
    /// The new bytes.
    pub bytes: Vec<u8>,
    /// One entry for each original instruction, in order.
    pub map: Vec<Moved>,
    /// Whether control can reach the end, so that a jump back must follow. It cannot after a jump or return, or after a
    /// call that returns to the original code.
    pub falls_through: bool,
    /// Where it leaves through pads, if the options have them: the offset of the original instruction, and the offset
    /// of the bytes that save the register and jump.
    pub exits: Vec<Moved>,
}

/// Where an instruction leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// The address.
    pub to: u64,
    /// Whether it is in the moved code.
    pub inside: bool,
}

/// What becomes of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form<Own> {
    /// The same bytes.
    Copy,
    /// Nothing.
    Drop,
    /// Something that only this instruction set has.
    Own(Own),
    /// A branch, or the opposite branch over a jump.
    Branch(Target),
    /// A jump.
    Jump(Target),
    /// A call, according to [`Link`].
    Call(Target),
    /// A jump through a register, with the original return address in the link register.
    IndirectCall,
    /// The same bytes; control does not go on to the next instruction.
    Stop,
}

impl<Own> Form<Own> {
    /// Whether it is a jump that needs a register.
    pub fn needs_register<R: Rules<Own = Own>>(&self, rules: &R) -> bool {
        let far = |target: &Target| !target.inside && rules.needs_register();
        match self {
            Self::Branch(target) | Self::Jump(target) => far(target),
            Self::Call(target) => far(target) && rules.link() == Link::Original,
            _ => false,
        }
    }
}

/// How the code of an instruction set is moved; the set's options implement it.
pub trait Rules: Sized {
    /// A decoded instruction.
    type Insn;
    /// What becomes of instructions of this set alone.
    type Own: Copy;
    /// The additional register that a moved instruction uses, if any.
    type Scratch: Copy;
    /// Why an instruction must stay.
    type Why;

    /// If the moved code is longer than this, all branches within it become opposite branches over jumps.
    const BRANCH_REACH: usize;

    /// The instruction at the start of code.
    fn decode(code: &[u8], addr: u64) -> Self::Insn;
    /// Its length.
    fn len(insn: &Self::Insn) -> usize;
    /// What it does with control.
    fn flow(insn: &Self::Insn) -> Flow;
    /// What becomes of it if control goes on to the next instruction.
    fn plain(insn: &Self::Insn) -> Form<Self::Own>;

    /// What moved calls return to.
    fn link(&self) -> Link;
    /// Whether jumps out of the moved code need a register.
    fn needs_register(&self) -> bool;
    /// Why an instruction must stay, judged by itself and these options.
    fn immovable(&self, insn: &Self::Insn) -> Option<Self::Why>;
    /// The additional register for an instruction; `None` if it needs one and there is none.
    fn scratch(&self, insn: &Self::Insn, form: Form<Self::Own>) -> Option<Self::Scratch>;

    /// Bytes of the instructions that form an address.
    fn address_len(&self) -> usize;
    /// Bytes of a jump.
    fn jump_len(&self, scratch: Self::Scratch, inside: bool) -> usize;
    /// Bytes of an indirect call, without those that form the return address.
    fn indirect_call_len(&self, piece: &Piece<Self>) -> usize;
    /// Bytes of what only this set has.
    fn own_len(&self, piece: &Piece<Self>, own: Self::Own) -> usize;

    /// Appends this many bytes of breakpoints.
    fn breakpoints(out: &mut Output, len: usize);
    /// Puts the return address of a call in its link register.
    fn set_link(&self, out: &mut Output, call: &Self::Insn) -> Result<(), OutOfRange>;
    /// Writes a branch, or its opposite.
    fn branch(
        out: &mut Output,
        branch: &Self::Insn,
        distance: i64,
        opposite: bool,
    ) -> Result<(), OutOfRange>;
    /// Writes a jump.
    fn jump(&self, out: &mut Output, piece: &Piece<Self>, to: Target) -> Result<(), OutOfRange>;
    /// Writes a call that returns to the moved code.
    fn call(&self, out: &mut Output, call: &Self::Insn, to: Target) -> Result<(), OutOfRange>;
    /// Writes an indirect call that returns to the original code.
    fn indirect_call(&self, out: &mut Output, piece: &Piece<Self>) -> Result<(), OutOfRange>;
    /// Writes what only this set has.
    fn own(&self, out: &mut Output, piece: &Piece<Self>, own: Self::Own) -> Result<(), OutOfRange>;
}

/// An instruction, and what becomes of it.
pub struct Piece<R: Rules> {
    /// The instruction.
    pub insn: R::Insn,
    form: Form<R::Own>,
    /// Its offset.
    pub old: usize,
    /// Its offset in the moved code.
    new: usize,
    /// Bytes of the gap before it.
    gap: usize,
    /// The additional register that it uses.
    pub scratch: R::Scratch,
}

/// Bytes of a branch.
const BRANCH: usize = 4;

impl<R: Rules> Piece<R> {
    /// Bytes of the moved instruction. `wide`: branches within the code are out of reach.
    fn len(&self, rules: &R, wide: bool) -> usize {
        let jump = |target: Target| rules.jump_len(self.scratch, target.inside);
        match self.form {
            Form::Copy | Form::Stop => R::len(&self.insn),
            Form::Drop => 0,
            Form::Own(own) => rules.own_len(self, own),
            Form::Branch(target) if target.inside && !wide => BRANCH,
            Form::Branch(target) => BRANCH + jump(target),
            Form::Jump(target) => jump(target),
            Form::Call(target) if rules.link() == Link::Moved => jump(target),
            Form::Call(target) => rules.address_len() + jump(target),
            Form::IndirectCall => rules.address_len() + rules.indirect_call_len(self),
        }
    }
}

fn form<R: Rules>(insn: &R::Insn, code: &[u8], from: u64, rules: &R) -> Form<R::Own> {
    let target = |to: u64| Target {
        to,
        inside: to.wrapping_sub(from) < code.len() as u64,
    };
    match R::flow(insn) {
        Flow::Branch(to) => Form::Branch(target(to)),
        Flow::Jump(to) => Form::Jump(target(to)),
        // A call of the code's start calls the function, and must be recorded.
        Flow::Call(to) if to == from => Form::Call(Target { to, inside: false }),
        Flow::Call(to) => Form::Call(target(to)),
        Flow::IndirectCall if rules.link() == Link::Moved => Form::Copy,
        Flow::IndirectCall => Form::IndirectCall,
        Flow::IndirectJump | Flow::Return { .. } => Form::Stop,
        Flow::Next => R::plain(insn),
        Flow::Fault | Flow::Invalid => Form::Copy,
    }
}

struct Layout<R: Rules> {
    pieces: Vec<Piece<R>>,
    len: usize,
    /// Branches within the code are out of reach.
    wide: bool,
}

/// Chooses the form of each instruction and where it goes, with gaps before some of them.
fn layout<R: Rules>(
    code: &[u8],
    from: u64,
    rules: &R,
    gaps: &[(usize, usize)],
) -> Result<Layout<R>, RelocateError<R::Why>> {
    let mut pieces: Vec<Piece<R>> = Vec::new();
    let mut offset = 0;
    while offset < code.len() {
        let insn = R::decode(&code[offset..], from.wrapping_add(offset as u64));
        if let Some(why) = rules.immovable(&insn) {
            return Err(RelocateError::Immovable { offset, why });
        }
        if rules.link() == Link::Original
            && let Some(Form::Call(_) | Form::IndirectCall) = pieces.last().map(|p| p.form)
        {
            return Err(RelocateError::CallInside { offset });
        }
        let form = form(&insn, code, from, rules);
        let scratch = rules.scratch(&insn, form);
        let scratch = scratch.ok_or(RelocateError::NoRegister { offset })?;
        let gap = gaps.iter().find(|(at, _)| *at == offset);
        let gap = gap.map_or(0, |(_, len)| *len);
        let len = R::len(&insn);
        pieces.push(Piece {
            insn,
            form,
            old: offset,
            new: 0,
            gap,
            scratch,
        });
        offset += len;
    }
    let mut place = |wide: bool| {
        let mut new = 0;
        for piece in &mut pieces {
            piece.new = new + piece.gap;
            new = piece.new + piece.len(rules, wide);
        }
        new
    };
    let mut len = place(false);
    let wide = len > R::BRANCH_REACH;
    if wide {
        len = place(true);
    }
    Ok(Layout { pieces, len, wide })
}

/// The length of the moved code, wherever it goes.
///
/// # Errors
/// If the code cannot be moved.
pub fn relocated_len<R: Rules>(
    code: &[u8],
    from: u64,
    options: &R,
) -> Result<usize, RelocateError<R::Why>> {
    layout(code, from, options, &[]).map(|layout| layout.len)
}

/// Moves whole instructions from the address `from` to the address `to`. Both are addresses at run time.
///
/// # Errors
/// If the code cannot be moved, or not there.
pub fn relocate<R: Rules>(
    code: &[u8],
    from: u64,
    to: u64,
    options: &R,
) -> Result<Relocated, RelocateError<R::Why>> {
    relocate_apart(code, from, to, options, &[])
}

/// [`relocate()`] with room between the instructions. Each gap is the offset of an original instruction and a number of
/// bytes, a multiple of a breakpoint's length; that many bytes of breakpoints come before the moved instruction.
/// Branches within the code lead to the start of the gap. `map` has the offsets after the gaps.
///
/// # Errors
/// If the code cannot be moved, or not there.
pub fn relocate_apart<R: Rules>(
    code: &[u8],
    from: u64,
    to: u64,
    options: &R,
    gaps: &[(usize, usize)],
) -> Result<Relocated, RelocateError<R::Why>> {
    let layout = layout(code, from, options, gaps)?;
    let mut writer = Writer {
        code,
        from,
        rules: options,
        layout: &layout,
        out: Output {
            bytes: Vec::with_capacity(layout.len),
            exits: Vec::new(),
            to,
        },
    };
    for piece in &layout.pieces {
        R::breakpoints(&mut writer.out, piece.gap);
        let form = writer.form(piece)?;
        let written = writer.write(piece, form);
        written.map_err(|_| RelocateError::OutOfRange { offset: piece.old })?;
        debug_assert_eq!(
            writer.out.bytes.len() - piece.new,
            piece.len(options, layout.wide)
        );
    }
    let Output { bytes, exits, .. } = writer.out;
    debug_assert_eq!(bytes.len(), layout.len);
    let falls_through = !layout.pieces.last().is_some_and(|piece| match piece.form {
        Form::Jump(_) | Form::Stop => true,
        Form::Call(_) | Form::IndirectCall => options.link() == Link::Original,
        _ => false,
    });
    let map = layout.pieces.iter().map(|piece| Moved {
        old: piece.old,
        new: piece.new,
    });
    Ok(Relocated {
        bytes,
        map: map.collect(),
        falls_through,
        exits,
    })
}

/// What is written.
pub struct Output {
    /// The moved code so far.
    pub bytes: Vec<u8>,
    /// See [`Relocated::exits`].
    pub exits: Vec<Moved>,
    /// The address of the first byte.
    pub to: u64,
}

impl Output {
    /// The address of what comes next.
    pub fn here(&self) -> u64 {
        self.to.wrapping_add(self.bytes.len() as u64)
    }
}

/// Writes pieces at their new address, one after the other.
struct Writer<'w, R: Rules> {
    /// The original code.
    code: &'w [u8],
    /// Its address.
    from: u64,
    rules: &'w R,
    layout: &'w Layout<R>,
    out: Output,
}

impl<R: Rules> Writer<'_, R> {
    /// The form of a piece, with the new target: what leads to the moved code stays within it.
    fn form(&self, piece: &Piece<R>) -> Result<Form<R::Own>, RelocateError<R::Why>> {
        let mut form = piece.form;
        if let Form::Branch(target) | Form::Jump(target) | Form::Call(target) = &mut form
            && target.inside
        {
            let old = target.to.wrapping_sub(self.from);
            let mut pieces = self.layout.pieces.iter();
            let found = pieces
                .find(|piece| piece.old as u64 == old)
                .ok_or(RelocateError::TargetInside { offset: piece.old })?;
            target.to = self.out.to.wrapping_add((found.new - found.gap) as u64);
        }
        Ok(form)
    }

    fn write(&mut self, piece: &Piece<R>, form: Form<R::Own>) -> Result<(), OutOfRange> {
        let (rules, out, insn) = (self.rules, &mut self.out, &piece.insn);
        match form {
            Form::Copy | Form::Stop => {
                let bytes = &self.code[piece.old..][..R::len(insn)];
                out.bytes.extend_from_slice(bytes);
                Ok(())
            }
            Form::Drop => Ok(()),
            Form::Own(own) => rules.own(out, piece, own),
            Form::Branch(target) if target.inside && !self.layout.wide => {
                let distance = target.to.wrapping_sub(out.here()).cast_signed();
                R::branch(out, insn, distance, false)
            }
            Form::Branch(target) => {
                // The opposite branch skips the jump.
                let over = BRANCH + rules.jump_len(piece.scratch, target.inside);
                R::branch(out, insn, over as i64, true)?;
                rules.jump(out, piece, target)
            }
            Form::Jump(target) => rules.jump(out, piece, target),
            Form::Call(target) if rules.link() == Link::Moved => rules.call(out, insn, target),
            Form::Call(target) => {
                rules.set_link(out, insn)?;
                rules.jump(out, piece, target)
            }
            Form::IndirectCall => rules.indirect_call(out, piece),
        }
    }
}
