//! Return probes: which functions can have one, and what each needs besides its actions.

use hodo_plan::model::{Mode, Plan};

use super::Probes;
use super::wanted::{Places, ProbePoint};
use hodo_module::Image;

/// Why no probe can see the function at an address return.
fn refusal(plan: &Plan, addr: u64) -> Option<String> {
    let function = plan
        .functions
        .binary_search_by_key(&addr, |function| function.addr)
        .map(|index| &plan.functions[index].outcome);
    match function {
        Err(_) => Some("it is not known to be a function".to_owned()),
        Ok(Err(reason)) => Some(reason.to_string()),
        Ok(Ok(site)) => match site.mode {
            Mode::Call => None,
            Mode::EntryOnly(reason) => {
                Some(format!("its return cannot be seen: {}", reason.as_str()))
            }
        },
    }
}

/// The return probes that cannot be: they are taken from `places`, and given with the reasons.
pub(super) fn take_refused(places: &mut Places, plan: &Plan) -> Vec<(u64, ProbePoint, String)> {
    places.take_out(|addr, point| match point.returns {
        true => refusal(plan, addr),
        false => None,
    })
}

impl Probes {
    /// The number of the counter for what a return probe misses.
    pub(super) fn missed(&mut self, point: &ProbePoint, addr: u64, image: &Image) -> u32 {
        self.counts.add(point, addr, &image.path, true)
    }
}
