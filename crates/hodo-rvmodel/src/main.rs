//! Prints the tables of `docs/riscv-proposals.md`.
#![forbid(unsafe_code)]

use anyhow::{Result, bail};
use hodo_rvmodel::tables;

const USAGE: &str = "usage: hodo-rvmodel tables";

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["tables"] => {
            for table in tables::fixed()? {
                println!("<!-- table: {} -->\n{}", table.name, table.text);
            }
            Ok(())
        }
        ["-h" | "--help"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => bail!("{USAGE}"),
    }
}
