//! The tables of `docs/riscv-proposals.md` that need no other file are what the program prints.

use hodo_rvmodel::tables;

/// What the page has after the mark of a table, up to the next empty line.
fn on_page<'p>(page: &'p str, name: &str) -> &'p str {
    let mark = format!("<!-- table: {name} -->\n");
    let (_, rest) = page
        .split_once(&mark)
        .unwrap_or_else(|| panic!("docs/riscv-proposals.md has no table {name}"));
    rest.split_once("\n\n").map_or(rest, |(table, _)| table)
}

#[test]
fn the_page_has_what_the_program_prints() {
    let page = include_str!("../../../docs/riscv-proposals.md");
    let tables = tables::fixed().expect("everything runs on the model");
    assert!(tables.len() > 1);
    for table in tables {
        assert!(table.text.lines().count() > 2, "{}", table.name);
        assert_eq!(
            on_page(page, table.name),
            table.text.trim_end(),
            "copy the table {} from `cargo run --release -p hodo-rvmodel -- tables` to the page",
            table.name
        );
    }
}
