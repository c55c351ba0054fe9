//! Tracepoints inside one program: what is evaluated, what functions see, and how they are removed.

mod emulator;

use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use hodo_keys::tracepoint::{Registration, Tracepoint};
use hodo_keys::{Error, tracepoint};

/// Collects what `pattern` sees while `work` runs.
fn seen(pattern: &str, work: impl FnOnce()) -> Vec<String> {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let registration = tracepoint::register(pattern, {
        let lines = Arc::clone(&lines);
        move |event| lines.lock().expect("no panic").push(event.to_string())
    })
    .expect("registered");
    work();
    registration.remove().expect("removed");
    let lines = Arc::into_inner(lines).expect("the function was dropped");
    lines.into_inner().expect("no panic")
}

fn find(name: &str) -> &'static Tracepoint {
    let mut found = None;
    tracepoint::for_each(|tracepoint| {
        if tracepoint.full_name() == name {
            found = Some(tracepoint);
        }
    })
    .expect("the list can be read");
    found.unwrap_or_else(|| panic!("there is no tracepoint {name}"))
}

#[test]
fn arguments_are_evaluated_only_while_it_is_enabled() {
    let evaluated = Cell::new(0);
    let hit = || {
        tracepoint!(
            lazy,
            hit,
            value = {
                evaluated.set(evaluated.get() + 1);
                7_u8
            }
        );
    };
    hit();
    assert_eq!(evaluated.get(), 0);
    assert_eq!(seen("lazy:hit", hit), ["lazy:hit value=7"]);
    assert_eq!(evaluated.get(), 1);
    hit();
    assert_eq!(evaluated.get(), 1);
    let enabled = tracepoint::enable("lazy:*").expect("enabled");
    assert_eq!(enabled.tracepoints(), Ok(1));
    hit();
    assert_eq!(evaluated.get(), 2);
    drop(enabled);
    hit();
    assert_eq!(evaluated.get(), 2);
    find("lazy:hit").key().enable().expect("switched");
    hit();
    assert_eq!(evaluated.get(), 3);
    find("lazy:hit").key().disable().expect("switched");
}

#[test]
fn all_types_arrive() {
    #[derive(Debug)]
    struct Opaque(#[allow(dead_code, reason = "only its address is used")] u8);
    let opaque = Opaque(1);
    let address = &raw const opaque;
    let (string, c_string) = (String::from("owned"), CString::from(c"c owned"));
    let (reference_to_string, reference_to_str) = (&string, &"twice");
    let hit = || {
        let (a, b, c, d) = (u8::MAX, u16::MAX, u32::MAX, u64::MAX);
        tracepoint!(types, unsigned, a, b, c, d, e = usize::MAX);
        tracepoint!(
            types,
            signed,
            a = i8::MIN,
            b = i16::MIN,
            c = i32::MIN,
            d = i64::MIN,
            e = -1_isize,
        );
        tracepoint!(types, others, a = true, b = 'ü', c = 1.5_f32, d = -0.1);
        tracepoint!(
            types,
            pointers,
            a = address,
            b = &opaque,
            c = std::ptr::NonNull::from(&opaque),
            d = std::ptr::null_mut::<u8>()
        );
        tracepoint!(
            types,
            strings,
            a = "borrowed",
            string,
            c_string,
            c = c"c borrowed",
            reference_to_string,
            reference_to_str,
            r#type = "",
            h = &string[1..],
        );
        tracepoint!(types, none);
    };
    hit();
    let place = address.addr();
    assert_eq!(
        seen("types:*", hit),
        [
            "types:unsigned a=255 b=65535 c=4294967295 d=18446744073709551615 e=18446744073709551615",
            "types:signed a=-128 b=-32768 c=-2147483648 d=-9223372036854775808 e=-1",
            "types:others a=true b='ü' c=1.5 d=-0.1",
            &format!("types:pointers a={place:#x} b={place:#x} c={place:#x} d=0x0"),
            "types:strings a=\"borrowed\" string=\"owned\" c_string=\"c owned\" c=\"c borrowed\" \
             reference_to_string=\"owned\" reference_to_str=\"twice\" type=\"\" h=\"wned\"",
            "types:none",
        ]
    );
    let names: &CStr = c"still there";
    tracepoint!(types, later, names);
    drop((string, c_string));
    let tracepoint = find("types:strings");
    assert_eq!(
        (tracepoint.group(), tracepoint.name()),
        ("types", "strings")
    );
    assert_eq!(tracepoint.arguments()[6], "type");
    assert!(tracepoint.key().is_tracepoint() && !tracepoint.key().is_enabled());
}

#[test]
fn functions_see_whole_strings() {
    let long = "ä".repeat(1000);
    let lines = seen("long:*", || tracepoint!(long, string, long));
    assert_eq!(lines, [format!("long:string long=\"{long}\"")]);
}

fn generic<T: tracepoint::Argument>(value: T) {
    tracepoint!(generic, hit, value);
}

#[test]
fn a_tracepoint_in_a_generic_function_has_one_key() {
    let lines = seen("generic:*", || {
        generic(1_u8);
        generic("text");
        generic(-2_i64);
    });
    assert_eq!(
        lines,
        [
            "generic:hit value=1",
            "generic:hit value=\"text\"",
            "generic:hit value=-2"
        ]
    );
    let mut found = Vec::new();
    hodo_keys::for_each(|each| {
        if each.key.name() == "generic:hit" {
            found.push((each.key as *const _, each.branches));
        }
    })
    .expect("the list can be read");
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].1, 3);
}

#[test]
fn several_functions_and_patterns_add_up() {
    let hit = || {
        tracepoint!(many, one);
        tracepoint!(many, two);
    };
    let counts = Arc::new([const { AtomicU64::new(0) }; 3]);
    let add = |pattern: &str, index: usize| {
        let counts = Arc::clone(&counts);
        tracepoint::register(pattern, move |_| {
            counts[index].fetch_add(1, Ordering::Relaxed);
        })
        .expect("registered")
    };
    let now = || [0, 1, 2].map(|index| counts[index].load(Ordering::Relaxed));
    let first = add("many:*", 0);
    let second = add("many:two", 1);
    let third = add("m?ny:t*", 2);
    assert_eq!((first.tracepoints(), second.tracepoints()), (Ok(2), Ok(1)));
    assert_eq!(find("many:two").key().users(), 3);
    hit();
    assert_eq!(now(), [2, 1, 1]);
    second.remove().expect("removed");
    hit();
    assert_eq!(now(), [4, 1, 2]);
    first.remove().expect("removed");
    assert!(!find("many:one").key().is_enabled());
    hit();
    assert_eq!(now(), [4, 1, 3]);
    third.remove().expect("removed");
    hit();
    assert_eq!(now(), [4, 1, 3]);
    assert_eq!(find("many:two").key().users(), 0);
}

#[test]
fn errors_say_what_is_wrong() {
    let error = tracepoint::register("name", |_| {}).expect_err("no pattern");
    assert_eq!(error, Error::Pattern);
    assert_eq!(
        error.to_string(),
        "a pattern of tracepoints is `group:name`, with `*` for any characters and `?` for one, of at most 192 bytes"
    );
    // A pattern that matches nothing yet may match tracepoints of a library that is loaded later.
    let nothing = tracepoint::enable("nowhere:*").expect("registered");
    assert_eq!(nothing.tracepoints(), Ok(0));
}

#[test]
fn a_function_is_not_called_for_what_it_hits_itself() {
    fn inner() {
        tracepoint!(recursion, inner);
    }
    let calls = Arc::new(AtomicU64::new(0));
    let other = Arc::new(AtomicU64::new(0));
    let counted = tracepoint::register("recursion:inner", {
        let other = Arc::clone(&other);
        move |_| {
            other.fetch_add(1, Ordering::Relaxed);
            inner();
        }
    })
    .expect("registered");
    let registration = tracepoint::register("recursion:*", {
        let calls = Arc::clone(&calls);
        move |_| {
            calls.fetch_add(1, Ordering::Relaxed);
            inner();
            tracepoint!(recursion, outer);
        }
    })
    .expect("registered");
    tracepoint!(recursion, outer);
    // Once for the hit above, and once for the other function's hit inside this one.
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(other.load(Ordering::Relaxed), 1);
    // Its own two hits, and one of the other function.
    assert_eq!((registration.missed(), counted.missed()), (3, 1));
}

#[test]
fn a_function_can_remove_itself() {
    struct Dropped(Arc<AtomicU64>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (hits, dropped) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let own: Arc<Mutex<Option<Registration>>> = Arc::default();
    let registration = tracepoint::register("once:hit", {
        let (hits, own) = (Arc::clone(&hits), Arc::clone(&own));
        let dropped = Dropped(Arc::clone(&dropped));
        move |_| {
            hits.fetch_add(1, Ordering::Relaxed);
            let registration = own.lock().expect("no panic").take().expect("the first hit");
            registration.remove().expect("removed");
            assert_eq!(dropped.0.load(Ordering::Relaxed), 0);
        }
    })
    .expect("registered");
    *own.lock().expect("no panic") = Some(registration);
    let hit = || tracepoint!(once, hit);
    (0..3).for_each(|_| hit());
    assert_eq!(hits.load(Ordering::Relaxed), 1);
    // The next registration or removal drops it; that may be another test's.
    let end = Instant::now() + Duration::from_secs(10);
    while dropped.load(Ordering::Relaxed) == 0 {
        assert!(Instant::now() < end);
        drop(tracepoint::enable("once:*").expect("enabled"));
    }
}

#[test]
fn a_panicking_function_leaves_everything_in_order() {
    let hit = || tracepoint!(panicking, hit);
    let registration =
        tracepoint::register("panicking:hit", |_| panic!("as it should")).expect("registered");
    for _ in 0..3 {
        std::panic::catch_unwind(hit).expect_err("the function panics");
    }
    assert_eq!(registration.missed(), 0);
    registration.remove().expect("nobody is in it");
    hit();
}

/// Functions come and go while threads hit: none is called after it was removed, and its memory is no longer used.
#[test]
fn functions_come_and_go_while_threads_hit() {
    #[inline(never)]
    fn work(value: u64) {
        tracepoint!(busy, hit, value);
        tracepoint!(busy, other, value, text = "text");
    }
    let stop = AtomicBool::new(false);
    let end = Instant::now() + Duration::from_secs(3);
    let last = end + Duration::from_secs(60);
    let calls = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..3 {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    work(thread);
                }
            });
        }
        let registrars: Vec<_> = ["busy:*", "busy:hit"]
            .map(|pattern| {
                let calls = &calls;
                scope.spawn(move || {
                    // On a busy machine, making enough calls takes longer.
                    while Instant::now() < end
                        || calls.load(Ordering::Relaxed) <= 100 && Instant::now() < last
                    {
                        let (gone, mine) = (
                            Arc::new(AtomicBool::new(false)),
                            Arc::new(AtomicU64::new(0)),
                        );
                        let registration = tracepoint::register(pattern, {
                            let (gone, mine) = (Arc::clone(&gone), Arc::clone(&mine));
                            let boxed: Box<[u64]> = Box::new([1; 16]);
                            move |event| {
                                assert!(!gone.load(Ordering::Relaxed), "called after its end");
                                assert_eq!(boxed.iter().sum::<u64>(), 16);
                                mine.fetch_add(event.fields().len() as u64, Ordering::Relaxed);
                            }
                        })
                        .expect("registered");
                        // A hit by this thread is certain to be seen.
                        work(9);
                        thread::yield_now();
                        registration.remove().expect("removed");
                        gone.store(true, Ordering::Relaxed);
                        // Nobody is in it, and it has been dropped.
                        let count = mine.load(Ordering::Relaxed);
                        assert_eq!(Arc::strong_count(&gone), 1);
                        assert!(count > 0);
                        calls.fetch_add(count, Ordering::Relaxed);
                    }
                })
            })
            .into_iter()
            .collect();
        for registrar in registrars {
            registrar.join().expect("all is well");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(calls.load(Ordering::Relaxed) > 100);
    assert!(!find("busy:hit").key().is_enabled());
}
