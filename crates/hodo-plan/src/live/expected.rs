//! Which registers callers expect to be unchanged when a function has returned, judged by their code.
//!
//! [`Summary::clobbers`](super::Summary) has the registers on which callers cannot rely. This module finds further
//! registers on which no caller relies, so that more registers are free. It inspects all callers in the image once:
//! their calls, and the jumps that end them. For callers in other files, and for calls through registers after which no
//! code uses more, the convention holds.

use std::collections::VecDeque;

use hodo_isa::code::Convention;

use super::registers::{self, UsedAfter};
use super::{Summaries, grow};
use crate::nodes::{Node, To, Way};
use crate::pieces;
use crate::survey::Survey;

/// For each piece, what is used after the function that it begins has returned to its caller.
pub(super) fn expected(
    survey: &Survey<'_>,
    summaries: &Summaries<'_>,
    convention: &Convention,
) -> Vec<u32> {
    let least = convention.returned(convention.volatile);
    let most: Vec<u32> = (summaries.pieces.iter())
        .map(|summary| summary.returned(convention, survey.image.isa.state()))
        .collect();
    let mut found = vec![least; survey.pieces.len()];
    let mut open: VecDeque<usize> = (0..found.len()).collect();
    let mut waits = vec![true; found.len()];
    let mut live = Vec::new();
    // What is used after calls through registers, which may call anything.
    let mut anywhere = 0;
    while let Some(index) = open.pop_front() {
        waits[index] = false;
        let piece = &survey.pieces[index];
        let code = summaries.of(index);
        let after = UsedAfter::These(found[index]);
        let count = code.nodes.len();
        registers::find_in(survey, summaries, (index, after), count, &mut live);
        let mut tell = |to: usize, expects: u32| {
            if grow(&mut found[to], expects & most[to]) && !std::mem::replace(&mut waits[to], true)
            {
                open.push_back(to);
            }
        };
        let own = match after {
            UsedAfter::These(own) => own,
            _ => least,
        };
        let mut dead = false;
        // If the target of a jump is unknown, it may be anything to which nothing else seems to lead.
        let jumps = code.nodes.iter().any(Node::is_indirect_jump);
        let lost = jumps && !summaries.pieces[index].jumps;
        for (at, node) in code.nodes.iter().enumerate() {
            dead &= !survey.targets.any.get(piece.start + node.at());
            if dead && !lost {
                continue;
            }
            dead = node.is_end();
            let (to, expects) = match code.way(node) {
                Way::Call(to) => (to, live[at + 1]),
                Way::IndirectCall => (To::Outside, live[at + 1]),
                Way::JumpAway(to) | Way::BranchAway(to) => (to, own),
                _ => continue,
            };
            match to {
                To::Piece(to) => tell(to, expects),
                To::Inside(addr) => {
                    if let Some(to) = pieces::find(&survey.pieces, addr) {
                        tell(to, expects);
                    }
                }
                // Nothing that takes part in this is called through another link register.
                To::Outside if node.reads != survey.image.isa.state() => anywhere |= expects,
                To::Outside | To::Unknown => {}
            }
        }
        // The places where control continues after the last instruction, and the targets of tables.
        let next = pieces::starting(&survey.pieces, piece.end).filter(|_| !dead);
        let led = summaries.outside.get(&index).into_iter().flatten();
        let led = led.filter_map(|&addr| pieces::find(&survey.pieces, addr));
        for to in next.into_iter().chain(led) {
            tell(to, own);
        }
    }
    for (expected, most) in found.iter_mut().zip(most) {
        *expected |= anywhere & most;
    }
    found
}
