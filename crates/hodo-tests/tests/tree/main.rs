//! Rules of the tree, and what its pages say.

mod circles;
mod porting;
mod tidy;
