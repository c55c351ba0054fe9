//! The macros do what those of `tracing` do, and their keys follow what subscribers want.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hodo_keys::Key;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Span, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry, reload};

#[path = "../../hodo-keys/tests/emulator/mod.rs"]
mod emulator;

/// Keys belong to the process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps what it sees as text.
#[derive(Clone, Default)]
struct Capture(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    /// Callsites that asked for its interest: everything known about each, with its line at the end.
    asked: Vec<String>,
    lines: Vec<String>,
}

impl Capture {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().expect("no panic")
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.seen().lines)
    }

    fn line(&self, what: &str, metadata: &Metadata<'_>, values: &str) {
        let fields: Vec<_> = metadata.fields().iter().map(|field| field.name()).collect();
        let line = format!(
            "{what} {} {} {} {:?} {:?} {:?}:{values}",
            metadata.name(),
            metadata.target(),
            metadata.level(),
            metadata.line(),
            metadata.module_path(),
            fields
        );
        self.seen().lines.push(line);
    }
}

struct Values(String);

impl Visit for Values {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").expect("text");
    }
}

impl<S: Subscriber + for<'span> LookupSpan<'span>> Layer<S> for Capture {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        let (name, target, level) = (metadata.name(), metadata.target(), metadata.level());
        let place = (metadata.module_path(), metadata.file());
        let kind = (metadata.is_event(), metadata.is_span());
        let fields: Vec<_> = metadata.fields().iter().map(|field| field.name()).collect();
        let line = metadata.line().unwrap_or(0);
        self.seen().asked.push(format!(
            "{name} {target} {level} {place:?} {kind:?} {fields:?} {line}"
        ));
        Interest::always()
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut values = Values(String::new());
        event.record(&mut values);
        let parent = match event.parent() {
            Some(_) => "child",
            None if event.is_root() => "root",
            None => "event",
        };
        self.line(parent, event.metadata(), &values.0);
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        let mut values = Values(String::new());
        attributes.record(&mut values);
        let parent = match attributes.parent() {
            Some(_) => "span in a parent",
            None if attributes.is_root() => "root span",
            None => "span",
        };
        self.line(parent, attributes.metadata(), &values.0);
    }

    fn on_record(&self, _: &Id, values: &Record<'_>, _: Context<'_, S>) {
        let mut text = Values(String::new());
        values.record(&mut text);
        self.seen().lines.push(format!("record{}", text.0));
    }
}

/// The keys of the events and spans in a line of this file.
fn keys(line: u32) -> Vec<&'static Key> {
    let mut keys = Vec::new();
    hodo_keys::for_each(|found| {
        if found.key.name().starts_with("tracing:")
            && found.key.name().ends_with(&format!(":{line}"))
        {
            keys.push(found.key);
        }
    })
    .expect("the list can be read");
    assert!(!keys.is_empty(), "line {line}");
    keys
}

fn is_on(line: u32) -> bool {
    let keys = keys(line);
    let on = keys.iter().filter(|key| key.is_enabled()).count();
    assert!(on == 0 || on == keys.len());
    on > 0
}

const CONSTANT: &str = "constant.name";

/// Each event is made with `tracing`'s macro and with ours: a subscriber must see the same.
#[test]
fn events_and_spans_match_those_of_tracing() {
    let _alone = alone();
    let capture = Capture::default();
    hodo_keys_tracing::install().expect("installed");
    let subscriber = Registry::default().with(capture.clone());
    tracing::subscriber::with_default(subscriber, || {
        let (number, text, list) = (5, "text", [1, 2]);
        let user = ("name", 7);
        let parent = tracing::info_span!("parent");
        let mut compared = 0;
        const LINE: u32 = line!() + 19;
        let asked = || -> BTreeSet<String> {
            let end = format!(" {LINE}");
            let asked = capture.seen().asked.clone().into_iter();
            asked.filter(|asked| asked.ends_with(&end)).collect()
        };
        // Ours, because `tracing` does not know its own yet.
        let ours = asked();
        macro_rules! both {
            ($($name:ident!($($arguments:tt)*);)*) => {$(
                capture.take();
                let _ = tracing::$name!($($arguments)*);
                let expected = capture.take();
                let _ = hodo_keys_tracing::$name!($($arguments)*);
                assert_eq!(capture.take(), expected);
                assert_eq!(expected.len(), 1, "{}", stringify!($name!($($arguments)*)));
                compared += 1;
            )*};
        }
        both! {
            trace!("a text");
            debug!("{} and {text}", number);
            info!(number);
            warn!(number, text, "both");
            error!(?list, %number, "with {} {}", 1, 2);
            info!(a = 1, b.c = ?list, b.d = %text, "r {e}", e = 5);
            info!(a = 1, b.c = ?list, b.d = %text,);
            info!("a literal" = 1, "another" = ?list, %text);
            info!({ CONSTANT } = 1, number);
            info!({ a = 1, ?list }, "text {}", number);
            info!({ a = 1, list = ?list }, "text {number}");
            info!(target: "elsewhere", "text");
            info!(target: "elsewhere", number, "text");
            info!(name: "own name", "text");
            info!(name: "own name", target: "elsewhere", number, "text");
            info!(parent: &parent, "text");
            info!(parent: None, "text");
            info!(name: "own name", target: "elsewhere", parent: &parent, a = number, "text");
            info!(target: "elsewhere", parent: &parent, a = if number > 3 { "more" } else { "less" }, "text");
            info!(a = user.0, b = user.1 + 1, c = { number }, d = list.len());
            info!(r#type = 5, "raw");
            info!(a = tracing::field::Empty, b = tracing::field::debug(&list));
            event!(Level::INFO, "text");
            event!(Level::WARN, number, ?list);
            event!(target: "elsewhere", Level::DEBUG, number, "text {}", text);
            event!(name: "own name", target: "elsewhere", parent: &parent, Level::DEBUG, { number }, "text");
            event!(parent: &parent, Level::ERROR, a = 1);
            span!(Level::INFO, "a span");
            span!(Level::INFO, "a span", number, a = ?list);
            span!(target: "elsewhere", parent: &parent, Level::TRACE, "a span", %text);
            span!(target: "elsewhere", Level::TRACE, "a span");
            span!(parent: None, Level::TRACE, "a span", number);
            trace_span!("a span");
            debug_span!("a span", number);
            info_span!("a span", a.b = number, text,);
            warn_span!(target: "elsewhere", "a span", ?list);
            error_span!(parent: &parent, "a span", later = tracing::field::Empty);
        }
        assert_eq!(compared, 37);
        // What subscribers hear of our callsites is what `tracing` reports of its own. Some are equal.
        assert!(ours.len() > 30, "{ours:#?}");
        assert_eq!(asked(), ours);
        // Spans are complete spans.
        let span = hodo_keys_tracing::info_span!("a span", later = tracing::field::Empty);
        capture.take();
        span.record("later", 5);
        assert_eq!(capture.take(), ["record later=5"]);
        assert!(span.in_scope(|| {
            Span::current()
                .metadata()
                .is_some_and(|m| m.name() == "a span")
        }));
    });
}

/// A program that does not know of keys loses nothing: before `install`, keys are enabled. (Another test may have
/// called it already, so only the place of a library could show that here; the key itself shows it.)
#[test]
fn keys_are_initially_enabled() {
    const LINE: u32 = line!() + 2;
    fn place() {
        hodo_keys_tracing::info!("text");
    }
    let _alone = alone();
    assert!(keys(LINE).iter().all(|key| key.initially_enabled()));
    let capture = Capture::default();
    tracing::subscriber::with_default(Registry::default().with(capture.clone()), place);
    assert_eq!(capture.take().len(), 1);
}

#[test]
fn unwanted_events_are_off_and_not_evaluated() {
    let _alone = alone();
    let evaluated = Cell::new(0);
    let value = || {
        evaluated.set(evaluated.get() + 1);
        evaluated.get()
    };
    const DEBUG: u32 = line!() + 2;
    let debug = || {
        hodo_keys_tracing::debug!(value = value(), "text");
    };
    const INFO: u32 = line!() + 2;
    let info = || {
        hodo_keys_tracing::info!(value = value(), "text");
    };
    const SPAN: u32 = line!() + 1;
    let span = || hodo_keys_tracing::debug_span!("a span", value = value());
    assert!(hodo_keys_tracing::install().expect("installed") > 30);
    // There is no subscriber at all; `tracing` does not notice when the last one goes.
    tracing::callsite::rebuild_interest_cache();
    assert!(!is_on(DEBUG) && !is_on(INFO) && !is_on(SPAN));
    debug();
    info();
    assert!(span().is_none());
    assert_eq!(evaluated.get(), 0);
    let capture = Capture::default();
    let (filter, handle) = reload::Layer::new(Targets::new().with_default(LevelFilter::INFO));
    let subscriber = Registry::default().with(capture.clone()).with(filter);
    tracing::subscriber::with_default(subscriber, || {
        assert!(!is_on(DEBUG) && is_on(INFO) && !is_on(SPAN));
        let asked = |line: u32| {
            let end = format!(" {line}");
            let asked = &capture.seen().asked;
            asked.iter().filter(|asked| asked.ends_with(&end)).count()
        };
        let (before, info_before) = (asked(DEBUG), asked(INFO));
        debug();
        info();
        assert!(span().is_none());
        assert_eq!((evaluated.get(), capture.take().len()), (1, 1));
        // `tracing` has registered its own callsite where the key is on, and none where it is off.
        assert_eq!((asked(DEBUG), asked(INFO)), (before, info_before + 1));
        // The filter changes, so interests change.
        handle
            .reload(Targets::new().with_default(LevelFilter::DEBUG))
            .expect("the subscriber is there");
        assert!(is_on(DEBUG) && is_on(INFO) && is_on(SPAN));
        debug();
        assert!(!span().is_none());
        assert_eq!((evaluated.get(), capture.take().len()), (3, 2));
        let own = Targets::new().with_target(module_path!(), LevelFilter::OFF);
        handle
            .reload(own.with_default(LevelFilter::TRACE))
            .expect("it is there");
        assert!(!is_on(DEBUG) && !is_on(INFO) && !is_on(SPAN));
        debug();
        info();
        assert_eq!((evaluated.get(), capture.take().len()), (3, 0));
    });
    assert_eq!(hodo_keys_tracing::last_error(), None);
}

/// A filter by the names of fields and spans sees those of the place.
struct Wants(fn(&Metadata<'_>) -> bool);

impl<S: Subscriber> Layer<S> for Wants {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if (self.0)(metadata) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        (self.0)(metadata)
    }
}

#[test]
fn filters_by_fields_names_and_kinds_work() {
    let _alone = alone();
    const PLAIN: u32 = line!() + 2;
    let plain = || {
        hodo_keys_tracing::trace!(a.b = 1, "text");
    };
    const OTHER: u32 = line!() + 2;
    let other = || {
        hodo_keys_tracing::trace!({ user = 5, a.b = ?1 }, "text");
    };
    const SPAN: u32 = line!() + 1;
    let span = || hodo_keys_tracing::error_span!("special", "key" = 5);
    let all = || {
        plain();
        other();
        drop(span());
    };
    hodo_keys_tracing::install().expect("installed");
    let with = |wants: fn(&Metadata<'_>) -> bool, expected: [bool; 3]| {
        let capture = Capture::default();
        let subscriber = Registry::default().with(capture.clone()).with(Wants(wants));
        tracing::subscriber::with_default(subscriber, || {
            assert_eq!([PLAIN, OTHER, SPAN].map(is_on), expected);
            all();
            let count = expected.iter().filter(|on| **on).count();
            assert_eq!(capture.take().len(), count);
        });
    };
    with(|m| m.fields().field("user").is_some(), [false, true, false]);
    with(|m| m.fields().field("a.b").is_some(), [true, true, false]);
    with(|m| m.fields().field("key").is_some(), [false, false, true]);
    with(
        |m| m.fields().field("message").is_some() && *m.level() == Level::TRACE,
        [true, true, false],
    );
    with(
        |m| m.name() == "special" && m.is_span(),
        [false, false, true],
    );
    with(
        |m| m.is_event() && m.name().starts_with("event crates/"),
        [true, true, false],
    );
    with(|_| false, [false; 3]);
}

/// Tells threads to stop, even if the test fails: otherwise it would wait for them forever.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Filters change while threads log: no event that must be there is lost, and none appears that must not.
#[test]
fn filters_change_while_threads_log() {
    let _alone = alone();
    const LINE: u32 = line!() + 2;
    fn work(value: u64) {
        hodo_keys_tracing::debug!(value, "text");
    }
    hodo_keys_tracing::install().expect("installed");
    let capture = Capture::default();
    let (filter, handle) = reload::Layer::new(LevelFilter::INFO);
    let subscriber = Registry::default().with(capture.clone()).with(filter);
    let dispatch = tracing::Dispatch::new(subscriber);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        for thread in 0..2 {
            let (stop, dispatch) = (&stop, &dispatch);
            scope.spawn(move || {
                tracing::dispatcher::with_default(dispatch, || {
                    while !stop.load(Ordering::Relaxed) {
                        (0..100).for_each(|_| work(thread));
                    }
                });
            });
        }
        tracing::dispatcher::with_default(&dispatch, || {
            let begin = Instant::now();
            let mut rounds = 0;
            // Each round takes long if one processor has all threads.
            while begin.elapsed() < Duration::from_secs(2) || rounds < 5 {
                handle.reload(LevelFilter::DEBUG).expect("it is there");
                assert!(is_on(LINE));
                capture.take();
                work(9);
                assert!(capture.take().iter().any(|line| line.ends_with("value=9")));
                handle.reload(LevelFilter::INFO).expect("it is there");
                assert!(!is_on(LINE));
                work(8);
                assert!(!capture.take().iter().any(|line| line.ends_with("value=8")));
                rounds += 1;
            }
        });
    });
    assert_eq!(hodo_keys_tracing::last_error(), None);
}
