//! The lists of probes that hits read: never changed, only replaced.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use super::analyze;
use super::layout::{Head, KEEP_NONE, Node};
use super::site::Site;

/// Sets the list of probes at a head. Returns the previous list, which is freed once nobody reads it any more.
fn publish(head: &Head, nodes: &[*const Node]) -> *mut *const Node {
    let new = match nodes {
        [] => analyze::empty(),
        nodes => {
            let list: Box<[*const Node]> =
                nodes.iter().copied().chain([core::ptr::null()]).collect();
            Box::into_raw(list).cast()
        }
    };
    // SAFETY: the nodes of a list are alive.
    let keeps = nodes.iter().map(|node| unsafe { &**node }.keep);
    let keep = keeps.max().unwrap_or(KEEP_NONE);
    // While the list changes, hits keep what either list needs.
    head.keep.fetch_max(keep, Ordering::AcqRel);
    head.list.swap(new, Ordering::AcqRel)
}

/// Adds a probe to a head, or removes one.
pub(super) fn relist(head: &Head, nodes: Vec<*const Node>, old: &mut Vec<*mut *const Node>) {
    old.push(publish(head, &nodes));
}

/// Works out what the probes of a site demand of its instruction.
pub(super) fn settle(site: &Site) {
    let after = site.nodes().filter(|node| node.after != 0).count();
    site.after.store(after as u32, Ordering::Release);
    let forced = site.nodes().map(|node| node.execution).max().unwrap_or(0);
    site.forced.store(forced, Ordering::Release);
}

/// Makes hits keep no more than the current lists need, once nobody has older ones.
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
        // SAFETY: (1) `publish` made this list, which ends with null; (2) nobody has it any more.
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
