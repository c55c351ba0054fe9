//! What a probe does at one place: counters and events.

use anyhow::{Result, bail};
use hodo_abi::Isa;
use hodo_codegen::native::detour::{
    Action, Block, Deed, Event, Fetch, MOST_VALUES, MOST_WORDS, Source, fault_words,
};
use hodo_probe_syntax::{Action as Wanted, ProbeKind};
use hodo_trace::format::{SHADOW_DISTANCE, record, tcb};
use serde_json::{Value, json};

use super::conditions::Arguments;
use super::counted::counter;
use super::values::{Fetched, fetches, returned};
use super::wanted::ProbePoint;
use super::{Output, Probes, name_of};
use crate::arch::NATIVE;
use hodo_module::Image;

/// What an event has of the place where it happens.
enum Content {
    /// The values that the definition names.
    Print,
    /// A copy of bytes of the stack.
    Snapshot,
    /// What the chain of callers is found by.
    StackTrace,
}

impl Content {
    /// The name of its kind in the trace; nothing for values, which need none.
    fn kind(&self) -> Option<&'static str> {
        match self {
            Self::Print => None,
            Self::Snapshot => Some("snapshot"),
            Self::StackTrace => Some("stacktrace"),
        }
    }
}

impl Probes {
    /// What a probe does at one place.
    pub(super) fn actions(
        &mut self,
        point: &ProbePoint,
        addr: u64,
        image: &Image,
        output: &mut Output<'_>,
    ) -> Result<Vec<Action>> {
        let index = point.definition;
        self.placed[index] += 1;
        if self.follows_names(index) {
            return Ok(vec![super::names::follow(&point.symbol)]);
        }
        let definition = point.resolved.as_deref();
        let near = |offset: u64| distance_to_data(image, offset, addr);
        let definition = definition.unwrap_or(&self.definitions[index]);
        let mut fetched = fetches(definition, NATIVE, &near)?;
        let described = fetched.described.iter_mut().zip(&*point.shown);
        for (text, shown) in described {
            if let Some(shown) = *shown {
                text["type"] = shown.into();
            }
        }
        let mut actions = self.definitions[index].actions.clone();
        if actions.is_empty() {
            actions.push(Wanted::Print);
        }
        let has_args = !self.definitions[index].args.is_empty();
        let mut deeds = Vec::new();
        // The values are in the first event of a hit, unless one is only for them.
        let holder = match actions.contains(&Wanted::Print) {
            true => None,
            false => actions.iter().position(is_stack),
        };
        for numbered in actions.iter().enumerate() {
            let with_values = has_args && holder == Some(numbered.0);
            deeds.extend(self.deeds(
                (numbered, with_values),
                (point, addr),
                &fetched,
                image,
                output,
            )?);
        }
        self.combined(index, fetched, deeds)
    }

    /// What one action of a definition does at a place. Histograms are numbered by their actions. `with_values`: an
    /// event of the stack has the definition's values, too.
    fn deeds(
        &mut self,
        ((number, action), with_values): ((usize, &Wanted), bool),
        (point, addr): (&ProbePoint, u64),
        fetched: &Fetched,
        image: &Image,
        output: &mut Output<'_>,
    ) -> Result<Vec<Deed>> {
        let index = point.definition;
        let gate = self.switches.trace();
        Ok(match action {
            Wanted::Count => {
                let number = self.counts.add(point, addr, &image.path, false);
                vec![Deed::Count(counter(number))]
            }
            Wanted::Print | Wanted::Snapshot(_) | Wanted::StackTrace => {
                let event = self.event((action, with_values), (point, addr), fetched, output)?;
                let has_values = with_values || *action == Wanted::Print;
                vec![Deed::Record(event, gate, has_values)]
            }
            Wanted::Hist(_) => {
                let arguments = self.arguments(fetched);
                let definition = point.resolved.as_deref();
                let wanted = definition.unwrap_or(&self.definitions[index]);
                let histogram = self.histograms.get(index, number, wanted, &arguments)?;
                histogram.into_iter().map(Deed::Histogram).collect()
            }
            Wanted::Enable(name) | Wanted::Disable(name) => {
                let on = matches!(action, Wanted::Enable(_));
                let bytes = self.switches.named(&self.definitions, name).into_iter();
                bytes.map(|byte| Deed::Switch(byte, on)).collect()
            }
            Wanted::TraceOn | Wanted::TraceOff => {
                let on = *action == Wanted::TraceOn;
                gate.map(|byte| Deed::Switch(byte, on))
                    .into_iter()
                    .collect()
            }
            Wanted::Return(value) => vec![Deed::Return(value.cast_unsigned())],
        })
    }

    /// An event of a place, which gets a number and a line in the log.
    fn event(
        &self,
        (action, with_values): (&Wanted, bool),
        (point, addr): (&ProbePoint, u64),
        fetched: &Fetched,
        output: &mut Output<'_>,
    ) -> Result<Event> {
        let definition = &self.definitions[point.definition];
        let shadow = self.stacks_lead_to_islands();
        let (mut values, mut args, content) = match action {
            Wanted::Snapshot(bytes) => {
                let (values, args) = snapshot(*bytes);
                (values, args, Content::Snapshot)
            }
            Wanted::StackTrace => {
                let (mut values, args) = stack(shadow);
                if definition.kind == ProbeKind::Return {
                    values.iter_mut().for_each(returned);
                }
                (values, args, Content::StackTrace)
            }
            _ => {
                let (values, args) = (fetched.values.clone(), fetched.described.clone());
                (values, args, Content::Print)
            }
        };
        let before = match with_values {
            true => put_before(fetched, &mut values, &mut args)?,
            false => 0,
        };
        let name = name_of(definition, &point.symbol, point.offset(addr));
        let id = output.event(addr, &name)?;
        let mut line = json!({"probe": {
            "id": id, "group": definition.group, "name": name,
            "symbol": *point.symbol, "offset": point.offset(addr), "args": args,
        }});
        let probe = &mut line["probe"];
        if let Some(kind) = content.kind() {
            probe["kind"] = kind.into();
        }
        if (with_values || matches!(content, Content::Print))
            && let Some(word) = fetched.caller
        {
            // Where more values follow, there may be more words with bits for faults.
            let more = match with_values {
                true => before - words(fetched) - fault_words(fetched.values.len()),
                false => 0,
            };
            probe["caller"] = (word + more).into();
        }
        if matches!(content, Content::StackTrace) {
            if before > 0 {
                probe["registers"] = before.into();
            }
            match hodo_patch::packs_stacks() {
                true => probe["stack"] = (before + STACK_WORD).into(),
                false if shadow => probe["shadow"] = (before + SHADOW_WORD).into(),
                false => {}
            }
        }
        output.log.line(&line)?;
        Ok(Event {
            info: id | record::ENTRY << record::KIND_SHIFT,
            payload: record::SPECIAL_PAYLOAD | record::SPECIAL << record::KIND_SHIFT,
            timed: self.timed,
            rdpid: crate::has_rdpid(),
            values,
        })
    }

    /// What all actions of a definition do together: one after the other, or a block if there is something to decide.
    fn combined(&self, index: usize, fetched: Fetched, deeds: Vec<Deed>) -> Result<Vec<Action>> {
        let condition = self.definitions[index].condition.as_ref();
        let switch = self.switches.of(index);
        let simple = |deed: &Deed| matches!(deed, Deed::Count(_) | Deed::Record(_, None, _));
        if condition.is_none() && switch.is_none() && deeds.iter().all(simple) {
            let simple = |deed| match deed {
                Deed::Count(counter) => Some(Action::Count(counter)),
                Deed::Record(event, ..) => Some(Action::Record(event)),
                _ => None,
            };
            return Ok(deeds.into_iter().filter_map(simple).collect());
        }
        let arguments = self.arguments(&fetched);
        let condition = condition.map(|expr| arguments.test(expr)).transpose()?;
        let block = Block {
            base: tcb::BASE as u32,
            switch,
            condition,
            values: fetched.values,
            deeds,
        };
        Ok(vec![Action::Block(Box::new(block))])
    }

    /// What conditions and histograms can name.
    fn arguments<'f>(&self, fetched: &'f Fetched) -> Arguments<'f> {
        Arguments {
            known: &fetched.known,
            types: &fetched.types,
            rdpid: crate::rdpid(NATIVE),
        }
    }
}

/// Whether an action records the stack.
fn is_stack(action: &Wanted) -> bool {
    matches!(action, Wanted::Snapshot(_) | Wanted::StackTrace)
}

/// The words that values take in an event.
fn words(fetched: &Fetched) -> usize {
    fetched.values.iter().map(Fetch::words).sum()
}

/// Puts the values of a definition before those of an event of the stack. Returns at which word the latter begin.
fn put_before(fetched: &Fetched, values: &mut Vec<Fetch>, args: &mut Vec<Value>) -> Result<usize> {
    let count = fetched.values.len();
    let (own, all) = (fault_words(count), fault_words(count + values.len()));
    let before = all + words(fetched);
    let total = before + values.iter().map(Fetch::words).sum::<usize>();
    if count + values.len() > MOST_VALUES || total > MOST_WORDS {
        bail!(
            "the values are too large for one event with the stack: {} bytes; {} can be",
            total * 8,
            MOST_WORDS * 8
        );
    }
    let shift = |text: &mut Value, key: &str, by: usize| {
        if let Some(number) = text[key].as_u64() {
            text[key] = (number + by as u64).into();
        }
    };
    for text in &mut *args {
        shift(text, "word", before);
        shift(text, "value", count);
    }
    let mut described = fetched.described.clone();
    for text in &mut described {
        shift(text, "word", all - own);
    }
    args.splice(..0, described);
    values.splice(..0, fetched.values.iter().cloned());
    Ok(before)
}

/// How far data at an offset in a file are from an address, when both are mapped.
fn distance_to_data(image: &Image, offset: u64, addr: u64) -> Option<i64> {
    let mut segments = image.segments.iter();
    let inside = segments.find(|s| (s.offset..s.offset + s.size).contains(&offset))?;
    let at = inside.addr + (offset - inside.offset);
    Some(at.wrapping_sub(addr).cast_signed())
}

/// The name of a snapshot in its event.
const STACK: &str = "stack";
/// Bytes of the stack that are kept for a chain of callers.
const KEPT_STACK: u32 = 8192;

/// Bytes of the stack, and what they are called.
fn snapshot(bytes: u32) -> (Vec<Fetch>, Vec<Value>) {
    let values = vec![Fetch::Bytes(
        Source::Register(NATIVE.stack_pointer),
        0,
        bytes,
    )];
    let described = json!({
        "name": STACK, "type": format!("x8[{bytes}]"), "word": 0, "value": 0, "shift": 0, "bits": 64,
    });
    (values, vec![described])
}

/// The registers that a stack trace has.
const REGISTERS: &[u8] = Isa::NATIVE.stack_trace_registers();

/// The word of a stack trace after the registers and the instruction's address.
const STACK_WORD: usize = REGISTERS.len() + 1;

/// The word of a stack trace after the registers, the instruction's address, and the stack with its length.
const SHADOW_WORD: usize = STACK_WORD + 1 + KEPT_STACK as usize / 8;

/// Registers in the processor's numbering, the instruction's address, and the stack: what callers are found by. Where a
/// machine does not pack stacks, they are copied; with `shadow`, the shadow of that stack, too, which has the return
/// addresses of traced functions.
fn stack(shadow: bool) -> (Vec<Fetch>, Vec<Value>) {
    let registers = REGISTERS
        .iter()
        .map(|&register| Fetch::Word(Source::Register(register)));
    let mut values: Vec<_> = registers.collect();
    values.push(Fetch::Word(Source::Here));
    if hodo_patch::packs_stacks() {
        values.push(Fetch::Stack);
        return (values, Vec::new());
    }
    let (mut bytes, mut described) = snapshot(KEPT_STACK);
    described[0]["word"] = values.len().into();
    described[0]["value"] = values.len().into();
    values.append(&mut bytes);
    if shadow {
        let top = Box::new(Source::Register(NATIVE.stack_pointer));
        let at = Source::Plus(top, -SHADOW_DISTANCE.cast_signed());
        values.push(Fetch::Bytes(at, 0, KEPT_STACK));
    }
    (values, described)
}
