//! The planner: which bytes of each function are changed, and how.

use std::path::Path;

use crate::bits::Bits;
use crate::donor_slots::Donors;
use crate::image::Image;
use crate::live::Live;
use crate::model::{Plan, PlanError, PlanOptions, PlannedFunction, Tactic};
use crate::sites::Sites;
use crate::static_keys::Statics;
use crate::subject::Planner;
use crate::survey::Survey;
use crate::verdicts::Verdict;
use crate::{hosts, static_keys};

/// Plans the image in `bytes`, which is the content of the file `path`.
///
/// # Errors
/// If the file is not a readable ELF image for a known instruction set.
pub fn plan(path: &Path, bytes: &[u8], options: &PlanOptions) -> Result<Plan, PlanError> {
    Ok(Survey::new(path, bytes, options.threads)?.plan(options))
}

/// Returns the plan of an image whose functions and calls are not of interest: what is known of it without its code.
///
/// # Errors
/// As those of [`plan`].
pub fn plan_nothing(bytes: &[u8]) -> Result<Plan, PlanError> {
    Ok(Plan {
        build_id: Image::parse(bytes)?.build_id(),
        static_branches: Statics::find(bytes).ranges().collect(),
        ..Plan::default()
    })
}

impl Survey<'_> {
    /// Plans the functions of the image, and its calls into libraries.
    #[must_use]
    pub fn plan(&self, options: &PlanOptions) -> Plan {
        plan_functions(self, options)
    }
}

fn plan_functions(survey: &Survey<'_>, options: &PlanOptions) -> Plan {
    let Survey {
        image,
        symbols,
        pieces,
        heads,
        targets,
        swept,
        statics,
        profilers,
        ..
    } = survey;
    let sites = Sites::find(image, profilers, pieces, swept);
    let (verdicts, facts) = survey.functions(&sites);
    let mut plan = Plan {
        build_id: image.build_id(),
        static_branches: statics.ranges().collect(),
        nops: sites.nops.clone(),
        ..Plan::default()
    };
    let host = hosts::detect(image, symbols, survey.path);
    plan.remarks.extend(host.remark());
    let registers = options.functions && image.isa.tracks_registers();
    let mut planner = Planner {
        image,
        symbols,
        pieces,
        heads,
        verdicts: &verdicts,
        facts: &facts,
        targets,
        occupied: Bits::new(&image.text),
        punned: Bits::new(&image.text),
        swept,
        sites: &sites,
        host: &host,
        statics,
        live: registers.then(|| {
            let mut live = Live::new(survey, options.keep);
            live.ask_callers(&sites.functions);
            live
        }),
    };
    statics.fill(&planner.occupied);
    statics.fill(&planner.punned);
    if options.functions {
        plan.functions = planner.functions();
    }
    // Moved instructions would miss their relocations, and the jumps in their place would be relocated.
    let relocated = image
        .relocates_code()
        .then_some("its code is relocated when it is loaded");
    match (relocated, &statics.damage) {
        (Some(reason), _) => trace_nothing(&mut plan, reason, None),
        (None, Some(damage)) => trace_nothing(&mut plan, static_keys::DAMAGED, Some(damage)),
        (None, None) if options.libcalls => plan.libcalls = survey.libcalls(&host),
        (None, None) => {}
    }
    plan
}

/// Refuses all functions of an image.
fn trace_nothing(plan: &mut Plan, reason: &'static str, details: Option<&String>) {
    for function in &mut plan.functions {
        function.outcome = Err(reason.into());
    }
    plan.nops.clear();
    let mut remark = format!("nothing is traced: {reason}");
    if let Some(details) = details {
        remark = format!("{remark}: {details}");
    }
    plan.remarks.push(remark);
}

impl Planner<'_> {
    fn functions(&mut self) -> Vec<PlannedFunction> {
        let functions = self.symbols.functions.iter().zip(self.verdicts);
        let mut planned: Vec<PlannedFunction> = Vec::with_capacity(functions.len());
        let mut left = Vec::new();
        for (index, (function, &verdict)) in functions.enumerate() {
            if verdict == Verdict::Part {
                continue;
            }
            let outcome = self.subject(index, function).and_then(|subject| {
                let mut site = self.jump(&subject);
                match &mut site {
                    Ok(site) if self.sites.functions.contains(&function.addr) => {
                        site.far = self.far(&subject, site).map(Box::new);
                    }
                    Ok(_) => {}
                    Err(_) => left.push((planned.len(), subject)),
                }
                site
            });
            if let Ok(site) = &outcome {
                self.occupy(site);
            }
            planned.push(PlannedFunction {
                name: function.name.clone(),
                addr: function.addr,
                size: function.size,
                outcome: outcome.map_err(|refusal| refusal.to_string().into()),
            });
        }
        // Functions without room for a jump look for one nearby once all others have theirs.
        let mut pads = self.free_pads();
        let mut hosts = Donors::new(&planned, self.image.isa.needs_register());
        for (at, subject) in left {
            let second = self
                .hop(&subject, &mut pads)
                .or_else(|| self.hop_to_donor(&subject, &mut hosts, &mut planned))
                .or_else(|| self.pun(&subject))
                .or_else(|| self.near_hop(&subject))
                .or_else(|| self.hop_by_pads(&subject))
                .map_or_else(|| self.trap(&subject), Ok);
            if let Ok(site) = &second {
                self.occupy(site);
            }
            planned[at].outcome = second.map_err(|refusal| refusal.to_string().into());
        }
        for function in &mut planned {
            if let Ok(site) = &mut function.outcome {
                self.far_literal(site, &mut pads);
            }
            if let Ok(site) = &mut function.outcome
                && self.sites.functions.contains(&function.addr)
                && site.tactic != Tactic::Trap
            {
                site.tactic = Tactic::Site;
            }
        }
        planned
    }
}
