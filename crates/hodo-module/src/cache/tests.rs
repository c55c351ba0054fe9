use std::os::unix::fs::symlink;

use super::*;

/// Plans an existing program. Returns the plan with its key.
fn planned() -> (Plan, Vec<u8>) {
    let exe = Path::new("/proc/self/exe");
    let image = Image::read(exe, "/usr/bin/some".into()).expect("this test");
    let options = PlanOptions {
        libcalls: false,
        ..PlanOptions::default()
    };
    let mut plan = hodo_plan::plan(&image.path, &image.bytes, &options).expect("a plan");
    plan.functions.truncate(300);
    plan.functions[10].outcome = Err("it is empty".into());
    let asked = Asked::Functions {
        functions: true,
        libcalls: false,
        keep: 0,
    };
    let key = Key::new(&image, asked).expect("files have versions");
    (plan, postcard::to_allocvec(&key).expect("bytes"))
}

#[test]
fn a_plan_is_read_as_it_was_written() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("a.plan");
    let (plan, key) = planned();
    assert!(plan.functions.iter().any(|f| f.outcome.is_ok()));
    assert!(plan.functions.iter().any(|f| f.outcome.is_err()));
    assert_eq!(read::<Plan>(&path, &key), None);
    write(directory.path(), &path, &key, &plan).expect("room");
    assert_eq!(read(&path, &key).as_ref(), Some(&plan));
    // Nothing else is left in the directory.
    let left = entries(directory.path()).expect("a directory");
    assert_eq!(left.len(), 1);
}

#[test]
fn damaged_files_are_ignored() {
    let (mut plan, key) = planned();
    plan.functions.truncate(40);
    let bytes = encode(&key, &plan).expect("room");
    assert_eq!(decode(&bytes, &key).as_ref(), Some(&plan));
    for len in 0..bytes.len() {
        assert_eq!(decode::<Plan>(&bytes[..len], &key), None, "{len} bytes");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert_eq!(decode::<Plan>(&longer, &key), None);
    for at in 0..bytes.len() {
        for bit in [0, 3, 7] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            assert_eq!(decode::<Plan>(&damaged, &key), None, "bit {bit} of {at}");
        }
    }
}

#[test]
fn whole_files_with_nonsense_are_ignored_or_do_not_fit() {
    let (plan, key) = planned();
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize
    };
    let whole = encode(&key, &plan).expect("room");
    let start = HEADER + key.len();
    for _ in 0..3000 {
        let mut bytes = whole.clone();
        for _ in 0..=random() % 4 {
            let at = start + random() % (bytes.len() - start);
            bytes[at] = random() as u8;
        }
        let sum = XxHash3_64::oneshot(&bytes[HEADER..]).to_le_bytes();
        bytes[HEADER - 8..HEADER].copy_from_slice(&sum);
        // Decoding must end.
        if let Some(plan) = decode::<Plan>(&bytes, &key) {
            let _ = plan.fits(&|range| range.end < 1 << 30);
        }
    }
    let code = |range: Range<u64>| range.start <= range.end;
    assert!(plan.fits(&code));
    assert!(!plan.fits(&|range| code(range.clone()) && range.end < plan.functions[150].addr));
}

#[test]
fn other_keys_and_other_peoples_files_are_not_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("a.plan");
    let (plan, key) = planned();
    write(directory.path(), &path, &key, &plan).expect("room");
    let mut other = key.clone();
    *other.last_mut().expect("a key") ^= 1;
    assert_eq!(read::<Plan>(&path, &other), None);
    let link = directory.path().join("b.plan");
    symlink(&path, &link).expect("a link");
    assert_eq!(read::<Plan>(&link, &key), None);
    let mode = |mode: u32| {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("own file");
        read::<Plan>(&path, &key).is_some()
    };
    assert!(mode(0o644));
    assert!(!mode(0o666));
    assert!(!mode(0o620));
    assert!(mode(0o600));
    // There may be a directory in the place of a file.
    assert_eq!(read::<Plan>(directory.path(), &key), None);
}

#[test]
fn the_least_recently_used_files_are_removed_first() {
    let directory = tempfile::tempdir().expect("a directory");
    for number in 0..8u64 {
        let path = directory.path().join(format!("{number}.plan"));
        fs::write(&path, vec![0; 1000]).expect("room");
        let used = SystemTime::now() - Duration::from_secs(100 * (number + 1));
        let file = File::options().write(true).open(&path);
        file.and_then(|file| file.set_modified(used))
            .expect("own file");
    }
    fs::write(directory.path().join("something else"), "kept").expect("room");
    trim(directory.path(), 8000);
    assert_eq!(entries(directory.path()).expect("a directory").len(), 8);
    trim(directory.path(), 7999);
    let left = entries(directory.path()).expect("a directory");
    let names: Vec<_> = left.iter().map(|entry| entry.path.file_name()).collect();
    let expected = ["0.plan", "1.plan", "2.plan", "3.plan", "4.plan"];
    assert_eq!(names, expected.map(|name| Some(name.as_ref())));
    assert_eq!(clear(directory.path()).expect("own files"), 5000);
    assert!(directory.path().join("something else").exists());
}

#[test]
fn files_for_other_processors_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("other");
    let others = Isa::ALL.into_iter().filter(|&isa| isa != Isa::NATIVE);
    for other in others {
        let mut header = [0; 64];
        header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        (header[16], header[20], header[52]) = (2, 1, 64);
        header[18..20].copy_from_slice(&other.elf_machine().to_le_bytes());
        fs::write(&path, header).expect("room");
        let image = Image::read(&path, "/usr/bin/other".into()).expect("a file");
        let options = PlanOptions::default();
        let planning = Planning::new(&image);
        let plan = planning.plan(&options).map(drop);
        let probes = planning.plan_probes(Wanted::Every, &options).map(drop);
        for outcome in [plan, probes] {
            let error = outcome.expect_err("a refusal");
            let foreign = |isa: &PlanError| matches!(isa, PlanError::Foreign(isa) if *isa == other);
            assert!(error.downcast_ref().is_some_and(foreign), "{error:#}");
        }
    }
}

#[test]
fn a_file_is_surveyed_when_the_first_plan_is_made_and_not_again() {
    let own = std::env::current_exe().expect("this program");
    let image = Image::read(&own, own.clone()).expect("a program");
    let options = PlanOptions::default();
    let planning = Planning::new(&image);
    assert!(!planning.is_surveyed());
    planning.survey(&options).expect("a survey");
    assert!(planning.is_surveyed());
    let first = std::ptr::from_ref(planning.survey(&options).expect("a survey"));
    planning
        .plan_probes(Wanted::Every, &options)
        .expect("a plan");
    let again = std::ptr::from_ref(planning.survey(&options).expect("a survey"));
    assert!(std::ptr::eq(first, again));
}

#[test]
fn a_file_is_not_surveyed_for_a_few_probes_or_for_nothing() {
    let own = std::env::current_exe().expect("this program");
    let image = Image::read(&own, own.clone()).expect("a program");
    let planning = Planning::new(&image);
    let nothing = PlanOptions {
        functions: false,
        libcalls: false,
        ..PlanOptions::default()
    };
    let plan = planning.plan(&nothing).expect("a plan");
    let object = ObjectFile::parse(&*image.bytes).expect("an ELF file");
    let build_id = object.build_id().expect("a readable file");
    assert_eq!(plan.build_id.is_some(), build_id.is_some());
    assert!(plan.functions.is_empty() && plan.libcalls.is_empty());
    // Each for itself, since plans are cached.
    let entry = image.entry();
    for places in [vec![entry], vec![entry, entry + 1]] {
        let probes = planning.plan_probes(Wanted::At(&places), &nothing);
        assert_eq!(probes.expect("a plan").total, places.len());
    }
    assert!(!planning.is_surveyed());
}
