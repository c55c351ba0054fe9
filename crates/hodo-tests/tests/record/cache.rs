//! Plans are kept for the next recording. Recordings are the same with kept plans, without them, and with plans that
//! others have tampered with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hodo_tests::{Kind, Trace, build, hodo, scratch};

/// Where stubs are kept for certain distances between what is loaded, all programs are loaded at the same addresses.
fn command() -> Command {
    if cfg!(target_arch = "x86_64") {
        return Command::new(hodo());
    }
    let mut command = Command::new("setarch");
    command.arg("-R").arg(hodo());
    command
}

fn run(words: &[&str], cache: &Path) -> Output {
    let output = command()
        .args(words)
        .env("HODO_CACHE", cache)
        .output()
        .expect("hodo can be run");
    assert!(output.status.success(), "{words:?}: {output:?}");
    output
}

/// Records the program with its libraries. Returns what it called and how often.
fn recorded(program: &Path, place: &Path, cache: &Path) -> Vec<(String, u64)> {
    let data = place.join("data");
    let (data, program) = (data.to_str(), program.to_str());
    let (data, program) = (data.expect("text"), program.expect("text"));
    run(&["record", "-l", "-d", data, "--", program], cache);
    Trace::new(data.into()).calls().into_iter().collect()
}

fn kept(cache: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cache).expect("a cache");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    paths
}

#[test]
fn recordings_are_the_same_with_kept_plans() {
    let place = scratch("kept_plans");
    let cache = place.join("cache");
    let program = build("filters.c", Kind::Pie, &[]);
    let alone = recorded(&program, &place, Path::new("off"));
    assert!(!cache.exists());
    assert!(alone.len() > 5, "{alone:?}");
    assert_eq!(recorded(&program, &place, &cache), alone);
    let files = kept(&cache);
    // Those of the program, its loader and its C library.
    assert!(files.len() >= 3, "{files:?}");
    let of_libc = |path: &&PathBuf| path.to_string_lossy().contains("/libc.so.6-");
    assert_eq!(files.iter().filter(of_libc).count(), 1, "{files:?}");
    // When something is recorded again, its stubs are kept, too.
    assert_eq!(recorded(&program, &place, &cache), alone);
    let files = kept(&cache);
    assert_eq!(files.iter().filter(of_libc).count(), 2, "{files:?}");
    let times = |path: &PathBuf| fs::metadata(path).and_then(|meta| meta.modified());
    let before: Vec<_> = files
        .iter()
        .map(|path| times(path).expect("a file"))
        .collect();
    assert_eq!(recorded(&program, &place, &cache), alone);
    let after: Vec<_> = files
        .iter()
        .map(|path| times(path).expect("a file"))
        .collect();
    assert_eq!((kept(&cache), &before), (files.clone(), &after));
    // Half of each is cut off, or replaced by other bytes: all are written again.
    for (index, path) in files.iter().enumerate() {
        let mut bytes = fs::read(path).expect("a file");
        match index % 2 {
            0 => bytes.truncate(bytes.len() / 2),
            _ => bytes.iter_mut().skip(100).for_each(|byte| *byte = !*byte),
        }
        fs::write(path, bytes).expect("a file");
    }
    let damaged: Vec<_> = files.iter().map(|path| fs::read(path).ok()).collect();
    for _ in 0..2 {
        assert_eq!(recorded(&program, &place, &cache), alone);
    }
    for (path, damaged) in files.iter().zip(damaged) {
        assert_ne!(fs::read(path).ok(), damaged, "{}", path.display());
    }
    let listed = run(&["cache"], &cache);
    let listed = String::from_utf8_lossy(&listed.stdout);
    assert!(listed.contains("libc.so.6-"), "{listed}");
    run(&["cache", "clear"], &cache);
    assert_eq!(kept(&cache), Vec::<PathBuf>::new());
    // Where no directory can be made, nothing is kept.
    let file = place.join("file");
    fs::write(&file, "").expect("room");
    assert_eq!(recorded(&program, &place, &file.join("cache")), alone);
    fs::remove_dir_all(place).expect("own files");
}

#[test]
fn a_replaced_program_is_planned_again() {
    let place = scratch("replaced_plans");
    let (program, cache) = (place.join("program"), place.join("cache"));
    let mut seen = Vec::new();
    let mut modified = None;
    for flags in [&["-O0"], &["-O2"]] {
        // It has the same name and inode, and the modification time that some installers give to all files.
        fs::copy(build("filters.c", Kind::Pie, flags), &program).expect("room");
        let file = fs::File::options().write(true).open(&program);
        let file = file.expect("own file");
        let now = file.metadata().and_then(|meta| meta.modified());
        let modified = *modified.get_or_insert(now.expect("a time"));
        file.set_modified(modified).expect("own file");
        drop(file);
        let alone = recorded(&program, &place, Path::new("off"));
        assert_eq!(recorded(&program, &place, &cache), alone);
        assert_eq!(recorded(&program, &place, &cache), alone);
        let plans = kept(&cache).into_iter();
        let name = |path: &PathBuf| path.to_string_lossy().contains("/program-");
        seen.push(plans.filter(name).count());
    }
    assert_eq!(seen, [1, 2]);
    fs::remove_dir_all(place).expect("own files");
}
