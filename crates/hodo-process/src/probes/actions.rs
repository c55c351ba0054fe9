//! What a probe does at one place: counters and events.

use anyhow::{Result, bail};
use hodo_arch::x86_64::detour::{Action, Block, Counter, Deed, Event};
use hodo_trace::format::{counters, record, tcb};
use serde_json::json;

use super::conditions::Arguments;
use super::values::fetches;
use super::{Counted, Probes, Spot, name_of};
use crate::modules::Image;
use crate::session::Session;

impl Probes {
    /// What a probe does at one place.
    pub(super) fn actions(
        &mut self,
        spot: &Spot,
        addr: u64,
        image: &Image,
        next_id: &mut u32,
        hits: &mut Vec<(u64, String)>,
        session: &mut Session,
    ) -> Result<Vec<Action>> {
        let definition = &self.definitions[spot.definition];
        let name = name_of(definition, spot);
        let fetched = fetches(definition);
        let mut deeds = Vec::new();
        self.placed[spot.definition] += 1;
        if definition.actions.contains(&hodo_probe::Action::Count) {
            deeds.push(Deed::Count(counter(self.counted.len() as u64)));
            self.counted.push(Counted {
                definition: spot.definition,
                name: name.clone(),
                place: (spot.symbol.clone(), spot.offset),
                addr,
                path: image.path.display().to_string(),
                missed: false,
            });
        }
        let prints = definition.actions.is_empty()
            || definition.actions.contains(&hodo_probe::Action::Print);
        if prints {
            let id = *next_id;
            if id > record::MAX_FUNCTION_ID {
                bail!(
                    "there are more than {} probes that print",
                    record::MAX_FUNCTION_ID
                );
            }
            *next_id += 1;
            hits.push((addr, name.clone()));
            let mut line = json!({
                "id": id, "group": definition.group, "name": name, "symbol": spot.symbol,
                "offset": spot.offset, "args": fetched.described,
            });
            if let Some(word) = fetched.caller {
                line["caller"] = word.into();
            }
            session.log(&json!({"probe": line}))?;
            deeds.push(Deed::Record(Event {
                info: id | record::ENTRY << record::KIND_SHIFT,
                payload: record::SPECIAL_PAYLOAD | record::SPECIAL << record::KIND_SHIFT,
                timed: self.timed,
                rdpid: self.rdpid,
                values: fetched.values.clone(),
            }));
        }
        let Some(condition) = &definition.condition else {
            let simple = |deed| match deed {
                Deed::Count(counter) => Action::Count(counter),
                Deed::Record(event) => Action::Record(event),
            };
            return Ok(deeds.into_iter().map(simple).collect());
        };
        let arguments = Arguments {
            known: &fetched.known,
            types: &fetched.types,
            rdpid: self.rdpid,
        };
        let block = Block {
            base: tcb::BASE as u32,
            switch: None,
            condition: Some(arguments.test(condition)?),
            values: fetched.values,
            deeds,
        };
        Ok(vec![Action::Block(Box::new(block))])
    }
}

/// A counter by its number.
pub(super) fn counter(number: u64) -> Counter {
    match counters::of_thread(number) {
        Some(at) => Counter::Thread(at),
        None => Counter::Shared {
            base: tcb::BASE as u32,
            at: counters::shared(number),
        },
    }
}
