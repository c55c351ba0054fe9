//! What a probe does at one place: counters and events.

use anyhow::{Result, bail};
use hodo_abi::Isa;
use hodo_codegen::native::detour::{Action, Block, Deed, Event, Fetch, Source};
use hodo_probe_syntax::{Action as Wanted, ProbeKind};
use hodo_trace::format::{SHADOW_DISTANCE, record, tcb};
use serde_json::{Value, json};

use super::conditions::Arguments;
use super::counted::counter;
use super::values::{fetches, returned};
use super::wanted::ProbePoint;
use super::{Probes, name_of};
use crate::Log;
use crate::arch::STACK_POINTER;
use hodo_module::Image;

impl Probes {
    /// What a probe does at one place.
    pub(super) fn actions(
        &mut self,
        point: &ProbePoint,
        addr: u64,
        image: &Image,
        next_id: &mut u32,
        hits: &mut Vec<(u64, String)>,
        log: &mut dyn Log,
    ) -> Result<Vec<Action>> {
        let index = point.definition;
        self.placed[index] += 1;
        if self.follows_names(index) {
            return Ok(vec![super::names::follow(&point.symbol)]);
        }
        let name = name_of(&self.definitions[index], &point.symbol, point.offset(addr));
        let near = |offset: u64| {
            let mut segments = image.segments.iter();
            let inside = segments.find(|s| (s.offset..s.offset + s.size).contains(&offset))?;
            let at = inside.addr + (offset - inside.offset);
            Some(at.wrapping_sub(addr).cast_signed())
        };
        let definition = point.resolved.as_deref();
        let mut fetched = fetches(definition.unwrap_or(&self.definitions[index]), &near)?;
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
        let gate = self.switches.trace();
        let shadow = self.stacks_lead_to_islands();
        let mut deeds = Vec::new();
        for (number, action) in actions.iter().enumerate() {
            match action {
                Wanted::Count => {
                    let number = self.counts.add(point, addr, &image.path, false);
                    deeds.push(Deed::Count(counter(number)));
                }
                Wanted::Print | Wanted::Snapshot(_) | Wanted::StackTrace => {
                    let (values, args, kind) = match action {
                        Wanted::Print => {
                            (fetched.values.clone(), fetched.described.clone(), "print")
                        }
                        Wanted::Snapshot(bytes) => {
                            let (values, args) = snapshot(*bytes);
                            (values, args, "snapshot")
                        }
                        _ => {
                            let (mut values, args) = stack(shadow);
                            if self.definitions[index].kind == ProbeKind::Return {
                                values.iter_mut().for_each(returned);
                            }
                            (values, args, "stacktrace")
                        }
                    };
                    let id = *next_id;
                    if id > record::MAX_FUNCTION_ID {
                        bail!(
                            "there are more than {} probes that print",
                            record::MAX_FUNCTION_ID
                        );
                    }
                    *next_id += 1;
                    hits.push((addr, name.clone()));
                    let mut line = json!({"probe": {
                        "id": id, "group": self.definitions[index].group, "name": name,
                        "symbol": *point.symbol, "offset": point.offset(addr), "args": args,
                    }});
                    if kind != "print" {
                        line["probe"]["kind"] = kind.into();
                        if kind == "stacktrace" && hodo_patch::packs_stacks() {
                            line["probe"]["stack"] = STACK_WORD.into();
                        } else if kind == "stacktrace" && shadow {
                            line["probe"]["shadow"] = SHADOW_WORD.into();
                        }
                    } else if let Some(word) = fetched.caller {
                        line["probe"]["caller"] = word.into();
                    }
                    log.line(&line)?;
                    let event = Event {
                        info: id | record::ENTRY << record::KIND_SHIFT,
                        payload: record::SPECIAL_PAYLOAD | record::SPECIAL << record::KIND_SHIFT,
                        timed: self.timed,
                        rdpid: self.rdpid,
                        values,
                    };
                    let shared = kind == "print";
                    deeds.push(Deed::Record(event, gate, shared));
                }
                Wanted::Hist(_) => {
                    let arguments = Arguments {
                        known: &fetched.known,
                        types: &fetched.types,
                        rdpid: self.rdpid,
                    };
                    let wanted = definition.unwrap_or(&self.definitions[index]);
                    let histogram = self.histograms.get(index, number, wanted, &arguments)?;
                    deeds.extend(histogram.map(Deed::Histogram));
                }
                Wanted::Enable(name) | Wanted::Disable(name) => {
                    let on = matches!(action, Wanted::Enable(_));
                    let bytes = self.switches.named(&self.definitions, name).into_iter();
                    deeds.extend(bytes.map(|byte| Deed::Switch(byte, on)));
                }
                Wanted::TraceOn | Wanted::TraceOff => {
                    let on = *action == Wanted::TraceOn;
                    deeds.extend(gate.map(|byte| Deed::Switch(byte, on)));
                }
                Wanted::Return(value) => deeds.push(Deed::Return(value.cast_unsigned())),
            }
        }
        let condition = &self.definitions[index].condition;
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
        let arguments = Arguments {
            known: &fetched.known,
            types: &fetched.types,
            rdpid: self.rdpid,
        };
        let condition = condition.as_ref();
        let block = Block {
            base: tcb::BASE as u32,
            switch,
            condition: condition.map(|expr| arguments.test(expr)).transpose()?,
            values: fetched.values,
            deeds,
        };
        Ok(vec![Action::Block(Box::new(block))])
    }
}

/// The name of a snapshot in its event.
const STACK: &str = "stack";
/// Bytes of the stack that are kept for a chain of callers.
const KEPT_STACK: u32 = 8192;

/// Bytes of the stack, and what they are called.
fn snapshot(bytes: u32) -> (Vec<Fetch>, Vec<Value>) {
    let values = vec![Fetch::Bytes(Source::Register(STACK_POINTER), 0, bytes)];
    let described = json!({
        "name": STACK, "type": format!("x8[{bytes}]"), "word": 0, "value": 0, "shift": 0, "bits": 64,
    });
    (values, vec![described])
}

/// The registers that a stack trace has.
const REGISTERS: &[u8] = Isa::NATIVE.stack_trace_registers();

/// The word of a stack trace after the registers and the instruction's address.
const STACK_WORD: u32 = REGISTERS.len() as u32 + 1;

/// The word of a stack trace after the registers, the instruction's address, and the stack with its length.
const SHADOW_WORD: u32 = STACK_WORD + 1 + KEPT_STACK / 8;

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
        let top = Box::new(Source::Register(STACK_POINTER));
        let at = Source::Plus(top, -SHADOW_DISTANCE.cast_signed());
        values.push(Fetch::Bytes(at, 0, KEPT_STACK));
    }
    (values, described)
}
