//! The lists of probes that hits read: never changed, only replaced.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use super::analyze;
use super::layout::{Head, KEEP_NONE, Node};
use super::site::Site;

/// Puts a list of probes at a head. Returns the one that was there; it is freed when nobody reads it any more.
fn publish(head: &Head, nodes: &[*const Node]) -> *mut *const Node {
    let new = match nodes {
        [] => analyze::empty(),
        nodes => {
            let list: Box<[*const Node]> =
                nodes.iter().copied().chain([core::ptr::null()]).collect();
            Box::into_raw(list).cast()
        }
    };
    // SAFETY: nodes of a list live.
    let keeps = nodes.iter().map(|node| unsafe { &**node }.keep);
    let keep = keeps.max().unwrap_or(KEEP_NONE);
    // While the list changes, what either needs.
    head.keep.fetch_max(keep, Ordering::AcqRel);
    head.list.swap(new, Ordering::AcqRel)
}

/// Adds a probe to a head, or takes one away.
pub(super) fn relist(head: &Head, nodes: Vec<*const Node>, old: &mut Vec<*mut *const Node>) {
    old.push(publish(head, &nodes));
}

/// What the probes of a site want of its instruction.
pub(super) fn settle(site: &Site) {
    let after = site.nodes().filter(|node| node.after != 0).count();
    site.after.store(after as u32, Ordering::Release);
    let forced = site.nodes().map(|node| node.execution).max().unwrap_or(0);
    site.forced.store(forced, Ordering::Release);
}

/// Has hits keep no more than what the lists need now, when nobody has older ones.
pub(super) fn narrow(site: &Site) {
    for (head, keep) in [
        (&site.head, site.nodes().map(|node| node.keep).max()),
        (
            &site.returns,
            site.return_nodes().map(|node| node.keep).max(),
        ),
    ] {
        head.keep
            .store(keep.unwrap_or(KEEP_NONE), Ordering::Release);
    }
}

/// Frees lists that nobody reads any more.
pub(super) fn free(lists: Vec<*mut *const Node>) {
    for list in lists.into_iter().filter(|list| *list != analyze::empty()) {
        let mut len = 1;
        // SAFETY: (1) it is a list that `publish` made, as long as its null says; (2) nobody has it any more.
        unsafe {
            while !(*list.add(len - 1)).is_null() {
                len += 1;
            }
            drop(Box::from_raw(core::ptr::slice_from_raw_parts_mut(
                list, len,
            )));
        }
    }
}
