//! The functions in which a thread is, of those that a client has named.

/// A function that has not returned.
#[derive(Debug, Clone)]
struct Call {
    /// Where the stack has the return address.
    stack: u64,
    function: Box<str>,
    /// What a function has returned to it.
    inner: u64,
}

/// What a thread has called.
#[derive(Debug, Clone, Default)]
pub(crate) struct Calls {
    /// The outermost one first.
    open: Vec<Call>,
    /// It has made a system call whose result is not known yet.
    pub(crate) in_kernel: bool,
}

impl Calls {
    /// The maximum number of calls that have not returned: functions that leave in other ways are forgotten late.
    const MOST: usize = 1000;

    /// The thread calls any function, and writes the return address here.
    pub(crate) fn call(&mut self, stack: u64) {
        // What had its return address here, or below, was left in another way, as by an exception.
        while self.open.pop_if(|call| call.stack <= stack).is_some() {}
    }

    /// A function begins. Returns how many others have not returned.
    pub(crate) fn enter(&mut self, stack: u64, function: &str) -> usize {
        self.open.retain(|call| call.stack >= stack);
        let depth = self.open.len();
        if depth < Self::MOST {
            self.open.push(Call {
                stack,
                function: function.into(),
                inner: 0,
            });
        }
        depth
    }

    /// A function returns. `ended` receives each function that ends with this, and what was returned to it: there are
    /// several if one has jumped to another.
    pub(crate) fn leave(&mut self, stack: u64, result: u64, mut ended: impl FnMut(&str, u64)) {
        while let Some(last) = self.open.last_mut() {
            if last.stack > stack {
                last.inner = result;
                break;
            }
            // One that is below has been left in another way.
            if last.stack == stack {
                ended(&last.function, last.inner);
            }
            self.open.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leave(calls: &mut Calls, stack: u64, result: u64) -> Vec<(String, u64)> {
        let mut ended = Vec::new();
        calls.leave(stack, result, |function, inner| {
            ended.push((function.to_owned(), inner));
        });
        ended
    }

    #[test]
    fn calls_end_where_they_began() {
        let mut calls = Calls::default();
        assert_eq!(calls.enter(100, "outer"), 0);
        assert_eq!(calls.enter(80, "inner"), 1);
        // A function without a name.
        assert_eq!(leave(&mut calls, 60, 7), []);
        assert_eq!(leave(&mut calls, 80, 8), [("inner".to_owned(), 7)]);
        assert_eq!(leave(&mut calls, 100, 9), [("outer".to_owned(), 8)]);
        assert_eq!(leave(&mut calls, 200, 1), []);
    }

    #[test]
    fn a_function_that_jumps_to_another_ends_with_it() {
        let mut calls = Calls::default();
        calls.enter(100, "first");
        calls.enter(100, "second");
        let both = [("second".to_owned(), 0), ("first".to_owned(), 0)];
        assert_eq!(leave(&mut calls, 100, 1), both);
    }

    #[test]
    fn what_is_left_in_another_way_is_forgotten() {
        let mut calls = Calls::default();
        calls.enter(100, "outer");
        calls.enter(80, "left");
        assert_eq!(leave(&mut calls, 100, 1), [("outer".to_owned(), 0)]);
        calls.enter(50, "left");
        calls.enter(90, "next");
        assert_eq!(leave(&mut calls, 90, 1), [("next".to_owned(), 0)]);
        assert!(calls.open.is_empty());
        calls.enter(90, "left");
        calls.call(90);
        assert_eq!(leave(&mut calls, 90, 1), []);
    }
}
