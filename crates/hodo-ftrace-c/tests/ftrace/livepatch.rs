//! Functions that are replaced while they run.

use crate::build::Form;
use crate::dynamic::each;

#[test]
fn threads_change_when_they_have_left_the_old_version() {
    each("livepatch", &[Form::Shared, Form::Static]);
}

#[test]
fn no_thread_mixes_versions_while_threads_come_and_go() {
    each("livepatch_chain", &[Form::Shared]);
}
