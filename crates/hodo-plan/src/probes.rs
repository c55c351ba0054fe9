//! Plans probes on single instructions: which regions of code are moved for them, and how the first bytes of a region
//! lead to its new place.
//!
//! The code of a function is divided into regions that are entered only at their first byte: neither a branch nor a
//! return leads into their middle. A region runs elsewhere as a whole, so one jump serves all probes in it. The bytes
//! that its jump does not overwrite are free for the jumps of regions that are too small.

use std::ops::Range;
use std::path::Path;

use hodo_isa::Via;
use hodo_isa::code::{Flow, InstructionSet, Step};

use crate::hosts;
use crate::image::Text;
use crate::ladder::{self, Region, unused};
use crate::live::Live;
use crate::model::{PlanError, PlanOptions, ProbePlan, ProbedInsn, Refused, RefusedProbe, Wanted};
use crate::modes;
use crate::pieces::{self, Piece};
use crate::regions::{Code, Span, State};
use crate::static_keys;
use crate::survey::{Survey, processors};

/// Why an instruction has no probe. The texts speak of it as "it".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Unprobed {
    /// The reason for the whole file or function.
    #[error("{0}")]
    LeftAlone(&'static str),
    #[error("it belongs to a signal handler's return, which unwinders know by its bytes")]
    SignalReturn,
    #[error("it is in a procedure linkage table")]
    Plt,
    #[error("it is data between code")]
    Data,
    #[error("it is not in executable code")]
    NoCode,
    #[error("it is not in the code of a known function")]
    Unknown,
    #[error("no known code leads to it: it may be data")]
    Unreached,
    #[error("it is padding, which is not executed")]
    Padding,
    #[error(
        "it is in a hardware transaction: a probe may abort it, and the abort undoes what the probe did"
    )]
    Transaction,
    #[error("it is in a sequence that depends on a memory reservation, which a probe may end")]
    Reserved,
    #[error("it is in a restartable sequence, which the kernel knows by its addresses")]
    Restartable,
    #[error("no register is free for the jump from its copy")]
    NoRegister,
    #[error("it branches into its own middle")]
    OwnMiddle,
    /// A reason that the instruction set gives.
    #[error("{0}")]
    Immovable(String),
}

impl Unprobed {
    /// What is at the address.
    fn what(&self) -> Refused {
        match self {
            Self::Data | Self::NoCode => Refused::NoInstruction,
            Self::Plt | Self::SignalReturn => Refused::LeftAlone,
            Self::Unknown => Refused::Unknown,
            _ => Refused::Instruction,
        }
    }
}

/// The results for some of the pieces.
#[derive(Default)]
struct Part {
    total: usize,
    regions: Vec<Region>,
    refused: Vec<RefusedProbe>,
}

/// Plans probes on instructions of the image in `bytes`, which is the content of the file `path`, with this many
/// threads (0: as many as there are processors).
///
/// # Errors
/// If the file is not a readable ELF image for a known instruction set.
pub fn plan_probes(
    path: &Path,
    bytes: &[u8],
    wanted: Wanted<'_>,
    threads: usize,
) -> Result<ProbePlan, PlanError> {
    let options = PlanOptions {
        threads,
        ..PlanOptions::default()
    };
    plan_probes_with(path, bytes, wanted, &options)
}

/// Finds these regions. Of the options, only `threads`, `keep` and `breakpoints` matter.
///
/// # Errors
/// As those of [`plan_probes`].
pub fn plan_probes_with(
    path: &Path,
    bytes: &[u8],
    wanted: Wanted<'_>,
    options: &PlanOptions,
) -> Result<ProbePlan, PlanError> {
    Ok(Survey::new(path, bytes, options.threads)?.plan_probes(wanted, options))
}

/// Plans probes at some addresses. Of a file with much code, only what the plan depends on is decoded: the code around
/// these addresses, and what leads there. `separate`: see [`Survey::with_names`].
///
/// # Errors
/// As those of [`plan_probes`].
pub fn plan_probes_at(
    path: &Path,
    (bytes, separate): (&[u8], Option<&[u8]>),
    addresses: &[u64],
    options: &PlanOptions,
) -> Result<ProbePlan, PlanError> {
    let survey = Survey::read(path, (bytes, separate), Some(addresses), options.threads)?;
    Ok(survey.plan_probes(Wanted::At(addresses), options))
}

/// Returns whether such a plan is made without decoding all code. For tests.
///
/// # Errors
/// As those of [`plan_probes`].
#[doc(hidden)]
pub fn is_planned_apart(path: &Path, bytes: &[u8], addresses: &[u64]) -> Result<bool, PlanError> {
    Ok(Survey::read(path, (bytes, None), Some(addresses), 1)?.is_partial)
}

impl Survey<'_> {
    /// Plans probes on instructions of the image. Of the options, only `threads` and `keep` matter.
    #[must_use]
    pub fn plan_probes(&self, wanted: Wanted<'_>, options: &PlanOptions) -> ProbePlan {
        plan_regions(self, wanted, options)
    }
}

fn plan_regions(
    survey: &Survey<'_>,
    wanted: Wanted<'_>,
    &PlanOptions {
        threads,
        keep,
        breakpoints,
        ..
    }: &PlanOptions,
) -> ProbePlan {
    let host = hosts::detect(&survey.image, &survey.symbols, survey.path);
    let all = host.refuses_all_probes(&survey.image, &survey.statics);
    let planner = Planner {
        live: Live::new(survey, keep),
        known: known(survey, &host),
        survey,
        all,
    };
    let mut plan = ProbePlan {
        build_id: survey.image.build_id(),
        ..ProbePlan::default()
    };
    let part = match wanted {
        Wanted::Every => planner.every(processors(threads)),
        Wanted::At(addresses) => planner.at(addresses),
    };
    plan.total = part.total;
    plan.refused = part.refused;
    let mut regions = part.regions;
    regions.sort_by_key(|region| region.start);
    match breakpoints {
        true => ladder::breakpoints(survey, regions, &mut plan),
        false => ladder::choose(survey, regions, &mut plan),
    }
    plan.sites.sort_by_key(|site| site.patch);
    plan.refused.sort_by_key(|refused| refused.addr);
    if let Some(reason) = all {
        let damage = survey.statics.damage.as_ref();
        plan.remarks
            .push(match damage.filter(|_| reason == static_keys::DAMAGED) {
                Some(damage) => format!("nothing is probed: {reason}: {damage}"),
                None => format!("nothing is probed: {reason}"),
            });
    }
    plan
}

/// What is known about each piece.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// It is not known to be code.
    No,
    /// It is a function or a part of one.
    Code,
    /// It is a signal handler's return.
    SignalReturn,
    /// It must not be changed, for this reason.
    Never(&'static str),
}

fn known(survey: &Survey<'_>, host: &hosts::Host) -> Vec<Known> {
    let Survey {
        symbols, pieces, ..
    } = survey;
    let mut fragments = symbols.fragments.iter().peekable();
    let of = |piece: &Piece| {
        if signal_return(survey, piece).is_some() {
            return Known::SignalReturn;
        }
        if let Some(reason) = host.lends(piece.start) {
            return Known::Never(reason);
        }
        let Some(function) = piece.function else {
            while fragments.next_if(|f| f.addr < piece.start).is_some() {}
            return match fragments.peek() {
                Some(fragment) if fragment.addr == piece.start => Known::Code,
                _ => Known::No,
            };
        };
        let function = &symbols.functions[function];
        if function.signal {
            return Known::SignalReturn;
        }
        let mut names = std::iter::once(&function.name).chain(&function.aliases);
        let reason = names.find_map(|name| modes::untouchable(name).or_else(|| host.copies(name)));
        reason.map_or(Known::Code, Known::Never)
    };
    pieces.iter().map(of).collect()
}

/// Returns where the code of a signal handler's return begins, if a piece is one: unwinders know it by its bytes. Its
/// range in the unwind table begins one byte early.
fn signal_return(survey: &Survey<'_>, piece: &Piece) -> Option<u64> {
    let text = survey.image.text_at(piece.start)?;
    [piece.start, piece.start + 1].into_iter().find(|&start| {
        let code = text.slice(start, piece.end);
        survey.image.isa.is_signal_return(code)
    })
}

struct Planner<'s> {
    survey: &'s Survey<'s>,
    known: Vec<Known>,
    /// What functions use and overwrite.
    live: Live<'s>,
    /// Why no instruction can have a probe.
    all: Option<&'static str>,
}

impl Planner<'_> {
    /// Every instruction of known code.
    fn every(&self, threads: usize) -> Part {
        let pieces = &self.survey.pieces;
        let size = |piece: &Piece| piece.end - piece.start;
        let share = pieces.iter().map(size).sum::<u64>() / threads as u64;
        let mut chunks = Vec::new();
        let mut start = 0;
        let mut sum = 0;
        for (index, piece) in pieces.iter().enumerate() {
            sum += size(piece);
            if sum > share {
                chunks.push(start..index + 1);
                start = index + 1;
                sum = 0;
            }
        }
        chunks.push(start..pieces.len());
        let run = |chunk: Range<usize>| {
            let mut part = Part::default();
            let mut code = Code::new(self.survey.image.isa);
            for index in chunk {
                self.piece(index, &mut code, &mut part);
            }
            part
        };
        let mut all = Part::default();
        std::thread::scope(|scope| {
            let run = &run;
            let workers: Vec<_> = chunks
                .into_iter()
                .map(|chunk| scope.spawn(move || run(chunk)))
                .collect();
            for worker in workers {
                let part = worker
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                all.total += part.total;
                all.regions.extend(part.regions);
                all.refused.extend(part.refused);
            }
        });
        all
    }

    /// The code of a piece.
    fn code_of(&self, index: usize) -> Piece {
        let mut piece = self.survey.pieces[index].clone();
        if matches!(self.known[index], Known::Never(_) | Known::SignalReturn)
            && let Some(start) = signal_return(self.survey, &piece)
        {
            piece.start = start;
        }
        piece
    }

    /// Every instruction of a piece.
    fn piece(&self, index: usize, code: &mut Code, out: &mut Part) {
        let piece = &self.code_of(index);
        let known = self.known[index];
        let Some(text) = self.survey.image.text_at(piece.start) else {
            return;
        };
        if known == Known::No {
            return;
        }
        code.read(self.survey, piece, text, &self.live);
        let mut at = 0;
        while at < code.steps.len() {
            if code.states[at] == State::Padding {
                at += 1;
                continue;
            }
            if let Err(reason) = self.probed(code, at, known, text) {
                out.total += 1;
                out.refused
                    .push(refused(self.isa(), text, &code.steps[at], &reason));
                at += 1;
                continue;
            }
            let Some((span, pads)) = code.region(at) else {
                out.total += 1;
                out.refused.push(refused(
                    self.isa(),
                    text,
                    &code.steps[at],
                    &Unprobed::NoRegister,
                ));
                at += 1;
                continue;
            };
            out.total += span.end - span.first;
            let probed = |&index: &usize| code.states[index] == State::Good;
            for index in (span.first..span.end).filter(|index| !probed(index)) {
                out.refused.push(refused(
                    self.isa(),
                    text,
                    &code.steps[index],
                    &Unprobed::Reserved,
                ));
            }
            let probes = (span.first..span.end).filter(probed);
            out.regions.push(self.region(code, (span, pads), probes));
            at = span.end;
        }
    }

    /// Returns whether an instruction can have a probe.
    ///
    /// # Errors
    /// Why not.
    fn probed(
        &self,
        code: &Code,
        index: usize,
        known: Known,
        text: &Text<'_>,
    ) -> Result<(), Unprobed> {
        if let Some(reason) = self.all {
            return Err(Unprobed::LeftAlone(reason));
        }
        match known {
            Known::Never(reason) => return Err(Unprobed::LeftAlone(reason)),
            Known::SignalReturn => return Err(Unprobed::SignalReturn),
            Known::Code | Known::No => {}
        }
        let step = &code.steps[index];
        Err(match code.states[index] {
            State::Good => return Ok(()),
            State::Padding => Unprobed::Padding,
            State::Data => Unprobed::Data,
            State::Transaction => Unprobed::Transaction,
            State::Reserved => Unprobed::Reserved,
            State::Restartable => Unprobed::Restartable,
            State::Immovable => {
                let code = text.slice(step.addr, step.end());
                let why = self.isa().immovable(code, step.addr);
                why.map_or(Unprobed::OwnMiddle, Unprobed::Immovable)
            }
            State::Unreached => Unprobed::Unreached,
            State::Static => Unprobed::LeftAlone(static_keys::IS_ONE),
        })
    }

    /// The instruction set of the image.
    fn isa(&self) -> &'static dyn InstructionSet {
        self.survey.image.isa
    }

    /// The instructions at some addresses.
    fn at(&self, addresses: &[u64]) -> Part {
        let mut part = Part {
            total: addresses.len(),
            ..Part::default()
        };
        let mut addresses: Vec<u64> = addresses.to_vec();
        addresses.sort_unstable();
        let mut code = Code::new(self.survey.image.isa);
        let mut rest = &addresses[..];
        while let [addr, ..] = *rest {
            let Some(index) = pieces::find(&self.survey.pieces, addr) else {
                let text = self.survey.image.text_at(addr);
                let reason = match text {
                    Some(text) if text.plt => Unprobed::Plt,
                    Some(_) => Unprobed::Unknown,
                    None => Unprobed::NoCode,
                };
                part.refused
                    .push(at_address(self.isa(), text, addr, &reason));
                rest = &rest[1..];
                continue;
            };
            let piece = &self.survey.pieces[index];
            let count = rest.partition_point(|&addr| addr < piece.limit);
            let mut here = rest[..count].to_vec();
            rest = &rest[count..];
            let repeated = here.len();
            here.dedup();
            part.total -= repeated - here.len();
            self.some(index, &here, &mut code, &mut part);
        }
        part
    }

    /// Instructions of a piece.
    fn some(&self, index: usize, addresses: &[u64], code: &mut Code, out: &mut Part) {
        let piece = &self.code_of(index);
        let known = self.known[index];
        let text = self.survey.image.text_at(piece.start);
        let Some(text) = text.filter(|_| known != Known::No) else {
            let refused = addresses.iter();
            out.refused.extend(
                refused.map(|&addr| at_address(self.isa(), text, addr, &Unprobed::Unknown)),
            );
            return;
        };
        code.read(self.survey, piece, text, &self.live);
        let mut probes = Vec::new();
        for &addr in addresses {
            match self.probe_at(code, addr, known, text) {
                Ok(at) => probes.push(at),
                Err(refused) => out.refused.push(refused),
            }
        }
        let mut at = 0;
        let mut rest = &probes[..];
        let (mut idle, mut wanted) = (Vec::new(), 0);
        // The regions are those that probes on all instructions would have.
        let span_at = |at: usize| {
            let probed = self.probed(code, at, known, text).is_ok();
            probed.then(|| code.region(at)).flatten()
        };
        while let [first, ..] = *rest {
            let span = span_at(at);
            let grown = span.is_some();
            let alone = Span {
                first: at,
                end: at + 1,
            };
            let (span, pads) = span.unwrap_or((alone, false));
            at = span.end;
            if first >= span.end {
                idle.extend((grown && !pads).then_some(span));
                continue;
            }
            if !grown {
                rest = &rest[1..];
                let step = &code.steps[first];
                out.refused
                    .push(refused(self.isa(), text, step, &Unprobed::NoRegister));
                continue;
            }
            let count = rest.partition_point(|&probe| probe < span.end);
            let (here, after) = rest.split_at(count);
            rest = after;
            let parts = match pads {
                true => {
                    wanted += code.pads(span).len() as u64;
                    vec![span]
                }
                false => self.narrow(code, span, here),
            };
            for small in parts {
                let from = here.partition_point(|&probe| probe < small.first);
                let to = here.partition_point(|&probe| probe < small.end);
                out.regions
                    .push(self.region(code, (small, pads), here[from..to].iter().copied()));
            }
        }
        let after = std::iter::from_fn(|| {
            let first = at;
            (first < code.steps.len()).then(|| {
                let span = span_at(first);
                at = span.map_or(first + 1, |(span, _)| span.end);
                span.filter(|(_, pads)| !pads).map(|(span, _)| span)
            })
        });
        let without_probes = idle.into_iter().rev().chain(after.flatten());
        self.donate(code, without_probes, wanted, out);
    }

    /// Returns the index of the instruction at an address, if it can have a probe.
    fn probe_at(
        &self,
        code: &Code,
        addr: u64,
        known: Known,
        text: &Text<'_>,
    ) -> Result<usize, RefusedProbe> {
        let isa = self.isa();
        if let Some(at) = code.at(addr) {
            let probed = self.probed(code, at, known, text);
            return probed
                .map(|()| at)
                .map_err(|reason| refused(isa, text, &code.steps[at], &reason));
        }
        let at = code.steps.partition_point(|step| step.addr <= addr);
        let inside = at.checked_sub(1).map(|at| &code.steps[at]);
        Err(match inside.filter(|step| addr < step.end()) {
            Some(step) => middle(isa, text, step, addr),
            None => at_address(isa, Some(text), addr, &Unprobed::Padding),
        })
    }

    /// Displaces regions without probes until they have room for the `wanted` pads of regions without a free register.
    fn donate(
        &self,
        code: &Code,
        without_probes: impl Iterator<Item = Span>,
        mut wanted: u64,
        out: &mut Part,
    ) {
        for span in without_probes {
            if wanted == 0 {
                break;
            }
            let taken = code.jump(span.first) + Via::TAKE;
            let room = (code.end(span) - code.start(span)).saturating_sub(taken) / Via::PAD;
            if room > 0 && self.room(code, span) >= taken {
                wanted = wanted.saturating_sub(room);
                let region = self.region(code, (span, false), std::iter::empty());
                out.regions.push(region);
            }
        }
    }

    /// The parts of a region that are needed for some of its instructions.
    fn narrow(&self, code: &Code, whole: Span, probes: &[usize]) -> Vec<Span> {
        let jump = |first: usize| code.jump(first);
        if self.room(code, whole) < jump(whole.first) {
            return vec![whole];
        }
        let mut spans: Vec<Span> = Vec::new();
        for &probe in probes {
            let last = spans.last().copied();
            if last.is_some_and(|last| probe < last.end) {
                continue;
            }
            let serves = |first: usize| {
                let enough =
                    |end: usize| end > probe && self.room(code, Span { first, end }) >= jump(first);
                let span = code.grow(first, enough)?;
                let serves = span.end <= whole.end && enough(span.end);
                serves.then_some(span)
            };
            let lowest = last.map_or(whole.first, |last| last.end);
            let own = (lowest..=probe).rev().find_map(serves);
            if let Some(span) = own {
                spans.push(span);
            } else if let Some(span) = last.and_then(|last| serves(last.first)) {
                spans.pop();
                spans.push(span);
            } else {
                return vec![whole];
            }
        }
        spans
    }

    fn region(
        &self,
        code: &Code,
        (span, by_pads): (Span, bool),
        probes: impl Iterator<Item = usize>,
    ) -> Region {
        let (start, end) = (code.start(span), code.end(span));
        let last = &code.steps[span.end - 1];
        let spare = code.spare(span);
        let pads = match by_pads {
            true => code.pads(span),
            false => Vec::new(),
        };
        let taken_elsewhere = pads.last().is_some_and(|&(from, _)| from == end);
        let mut room = self.room(code, span);
        if let Via::Kept(_) = spare.back
            && !taken_elsewhere
        {
            // The instructions that restore the register are at the end.
            room = room.min(end - start - Via::TAKE);
        }
        let jump = code.jump(span.first);
        Region {
            spare,
            pads,
            via: code.via(span.first),
            start,
            landing: code.landing(span.first),
            end,
            call: if last.is_call() { last.addr } else { end },
            room,
            block: room >= jump && code.loops(span, jump),
            used: code.middle(span.first).is_some(),
            probes: probed(code, span, probes),
        }
    }

    /// Returns how many bytes at the start of a region a patch may overwrite, up to the length of the long jump.
    fn room(&self, code: &Code, span: Span) -> u64 {
        let (start, end) = (code.start(span), code.end(span));
        if let Some(middle) = code.middle(span.first) {
            return middle - start;
        }
        // A call that nothing follows may still return.
        if end - start >= code.jump(span.first) || !code.steps[span.end - 1].flow.is_end() {
            return end - start;
        }
        let pads = &self.survey.swept.pads;
        let at = pads.partition_point(|pad| pad.start <= end);
        match at.checked_sub(1).map(|at| &pads[at]) {
            Some(pad) if pad.end > end => unused(self.survey, pad).end.max(end) - start,
            _ => end - start,
        }
    }
}

/// What is known about the instructions of a region that have probes.
fn probed(code: &Code, span: Span, probes: impl Iterator<Item = usize>) -> Vec<ProbedInsn> {
    let goes_on = |step: &Step| step.flow == Flow::Next && !step.leaves;
    let mut all = Vec::with_capacity(probes.size_hint().1.unwrap_or(span.end - span.first));
    let mut last: Option<usize> = None;
    for probe in probes {
        // It is executed whenever the one before it in the list is.
        let joined = last.replace(probe).is_some_and(|before| {
            code.steps[before..probe].iter().all(goes_on)
                && (before + 1..=probe).all(|index| !code.is_target(index))
        });
        all.push(ProbedInsn {
            addr: code.steps[probe].addr,
            free: code.free(probe),
            flags_dead: code.flags_dead(probe),
            joined,
            entered: code.is_entered(probe),
        });
    }
    all
}

fn refused(
    isa: &'static dyn InstructionSet,
    text: &Text<'_>,
    step: &Step,
    reason: &Unprobed,
) -> RefusedProbe {
    RefusedProbe {
        addr: step.addr,
        insn: isa.text(text.slice(step.addr, step.end()), step.addr),
        reason: reason.to_string(),
        what: reason.what(),
    }
}

/// A refusal for places where the starts of instructions are unknown.
fn at_address(
    isa: &'static dyn InstructionSet,
    text: Option<&Text<'_>>,
    addr: u64,
    reason: &Unprobed,
) -> RefusedProbe {
    let code = text.map_or(&[][..], |text| {
        text.slice(addr, text.end().min(addr + isa.longest()))
    });
    let insn = match code {
        [] => String::new(),
        code => isa.text(code, addr),
    };
    RefusedProbe {
        addr,
        insn,
        reason: reason.to_string(),
        what: reason.what(),
    }
}

fn middle(
    isa: &'static dyn InstructionSet,
    text: &Text<'_>,
    step: &Step,
    addr: u64,
) -> RefusedProbe {
    let insn = isa.text(text.slice(step.addr, step.end()), step.addr);
    let reason = format!("it is the middle of `{insn}` at {:#x}", step.addr);
    RefusedProbe {
        addr,
        insn,
        reason,
        what: Refused::NoInstruction,
    }
}
