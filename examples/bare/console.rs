//! Text on the console.

use core::fmt::{self, Write};

use crate::put;

/// The console, which `put` writes to. Only the first hart prints, except when something fails.
pub struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(put);
        Ok(())
    }
}

/// Prints a line.
#[macro_export]
macro_rules! say {
    ($($arguments:tt)*) => {{
        use core::fmt::Write;
        // The console never fails.
        let _ = writeln!($crate::console::Console, $($arguments)*);
    }};
}
