//! Memory, for people and for scripts.

use crate::hot::{Object, What};
use crate::places::Place;
use serde_json::{Value, json};

/// The function of a place.
#[must_use]
pub fn function(place: Option<&Place>) -> &str {
    place
        .and_then(|place| place.function.as_deref())
        .unwrap_or("?")
}

/// Objects as JSON. `names` are those of what was counted.
#[must_use]
pub fn as_json(objects: Vec<Object>, names: [&str; 2]) -> Vec<Value> {
    let rows = objects.into_iter().map(|object| {
        let mut row = json!({"bytes": object.bytes});
        for (name, count) in names.into_iter().zip(object.counts) {
            row[name] = json!(count);
        }
        if let What::Allocated(_) = object.what {
            row["allocations"] = json!(object.allocations);
            row["allocated"] = json!(object.allocated);
        }
        extend(&mut row, what(object.what));
        row
    });
    rows.collect()
}

/// What memory is, as JSON.
pub(super) fn what(what: What) -> Value {
    match what {
        What::Variable(name, file) => json!({"kind": "variable", "name": name, "file": file}),
        What::Stack(thread) => json!({"kind": "stack", "thread": thread}),
        What::Allocated(calls) => {
            let mut calls = calls.into_iter();
            let call = located(calls.next());
            let callers: Vec<Value> = calls.map(|call| located(Some(call))).collect();
            let mut row = json!({"kind": "allocation", "callers": callers});
            extend(&mut row, call);
            row
        }
        What::Written(place) => {
            let mut row = json!({"kind": "written"});
            extend(&mut row, located(place));
            row
        }
        What::Other => json!({"kind": "other"}),
    }
}

/// Where something is, as JSON.
pub(super) fn located(place: Option<Place>) -> Value {
    let (file, line) = place.as_ref().and_then(|place| place.line.clone()).unzip();
    let function = place.and_then(|place| place.function);
    json!({"function": function, "file": file, "line": line})
}

/// Adds the members of one JSON object to another.
fn extend(row: &mut Value, more: Value) {
    if let (Value::Object(row), Value::Object(more)) = (row, more) {
        row.extend(more);
    }
}

/// Where something is, for people.
pub(super) fn location(place: &Place) -> String {
    let function = function(Some(place));
    match &place.line {
        Some((file, line)) => format!("{function}, {file}:{line}"),
        None => function.to_owned(),
    }
}

/// What memory is, for people.
#[must_use]
pub fn memory(object: &Object) -> String {
    match &object.what {
        What::Allocated(_) => {
            let times = match object.allocations {
                1 => "once".to_owned(),
                times => format!("{times} times"),
            };
            let more = format!("{times}, {} bytes, ", object.allocated);
            named(&object.what, &more)
        }
        what => named(what, ""),
    }
}

/// The same without what was counted. `more` is said of allocations.
pub(super) fn named(what: &What, more: &str) -> String {
    match what {
        What::Variable(name, file) => format!("{name} ({file})"),
        What::Stack(thread) => format!("the stack of thread {thread}"),
        What::Other => "other memory".to_owned(),
        What::Written(None) => "not written, or by unknown code".to_owned(),
        What::Written(Some(place)) => format!("first written by {}", location(place)),
        What::Allocated(calls) => {
            let mut calls = calls.iter();
            let unknown = || "unknown code".to_owned();
            let place = calls.next().map_or_else(unknown, location);
            let callers: Vec<&str> = calls.map(|call| function(Some(call))).collect();
            let from = match callers.is_empty() {
                true => String::new(),
                false => format!(" < {}", callers.join(" < ")),
            };
            format!("allocated {more}by {place}{from}")
        }
    }
}
