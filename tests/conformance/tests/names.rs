//! The names of the library, as its file has them; and what goes past them.

use anyhow::{Result, ensure};
use fordway_lab::{Lab, PathChoice, Place, Spawn, Stdin};
use fordway_test_conformance::{Bed, PATIENCE};
use object::{File, Object, ObjectSymbol, RelocationTarget};
use std::collections::BTreeSet;

/// A program may have a function of its own under a name that the library exports. Where the
/// library has the dynamic linker look the name up for itself, it would call the program's.
#[test]
fn the_library_binds_its_own_names_to_itself() -> Result<()> {
    let lab = Lab::start()?;
    let bytes = std::fs::read(lab.fordway().with_file_name("libfordway.so"))?;
    let library = File::parse(&*bytes)?;
    let exported: BTreeSet<_> = library
        .dynamic_symbols()
        .filter(|symbol| !symbol.is_undefined())
        .map(|symbol| symbol.name())
        .collect::<Result<_, _>>()?;
    ensure!(exported.contains("sigaction"), "exported: {exported:?}");
    let mut looked_up = BTreeSet::new();
    for (_, relocation) in library.dynamic_relocations().into_iter().flatten() {
        if let RelocationTarget::Symbol(index) = relocation.target() {
            let table = library.dynamic_symbol_table();
            let table = table.ok_or_else(|| anyhow::anyhow!("no dynamic symbols"))?;
            looked_up.insert(object::ObjectSymbolTable::symbol_by_index(&table, index)?.name()?);
        }
    }
    let both: Vec<_> = exported.intersection(&looked_up).collect();
    ensure!(both.is_empty(), "looked up and exported: {both:?}");
    ensure!(looked_up.contains("dlsym"), "looked up: {looked_up:?}");
    lab.close();
    Ok(())
}

#[test]
fn bytes_past_the_library_are_told_of() -> Result<()> {
    let bed = Bed::start()?;
    let program = Bed::program("unseen");
    let spawn = Spawn::new([program.to_string_lossy().as_ref(), "told"])
        .env("FORDWAY_OFFER_AFTER", "0")
        .stdin(Stdin::Pipe);
    let mut program = bed.lab.spawn(&Place::Here, PathChoice::Auto, &spawn)?;
    bed.lab.wait_until(PATIENCE, "the reason is listed", || {
        let ends = bed.lab.connections()?;
        Ok(ends
            .iter()
            .any(|end| end.reason.as_deref() == Some("unseen")))
    })?;
    drop(program.take_stdin());
    let text = program.finish()?.text();
    ensure!(text.contains("in order, or reset"), "{text}");
    bed.finish()
}
