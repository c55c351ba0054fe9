//! This crate is empty. Only its dependencies are needed.
