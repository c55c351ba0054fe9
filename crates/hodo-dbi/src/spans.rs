//! A set of addresses.

use hodo_abi::Span;

/// Ranges of addresses, in ascending order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spans(Vec<Span>);

impl Spans {
    /// The number of the first range that ends after an address.
    fn from(&self, address: u64) -> usize {
        self.0.partition_point(|span| span.end <= address)
    }

    /// The range that contains an address.
    pub(crate) fn at(&self, address: u64) -> Option<Span> {
        let span = self.0.get(self.from(address))?;
        span.contains(address).then_some(*span)
    }

    /// Whether some of a range is in the set.
    pub(crate) fn overlap(&self, range: Span) -> bool {
        let span = self.0.get(self.from(range.start));
        span.is_some_and(|span| span.overlaps(range))
    }

    /// What of a range is in the set.
    pub(crate) fn within(&self, range: Span) -> impl Iterator<Item = Span> {
        let spans = self.0[self.from(range.start)..].iter();
        let spans = spans.take_while(move |span| span.start < range.end);
        spans.map(move |span| Span::from(span.start.max(range.start)..span.end.min(range.end)))
    }

    /// A range, and those that have some of it.
    pub(crate) fn around(&self, range: Span) -> Span {
        let spans = self.0.iter().filter(|span| span.overlaps(range));
        spans.fold(range, |all, span| {
            Span::from(all.start.min(span.start)..all.end.max(span.end))
        })
    }

    /// All ranges.
    pub(crate) fn all(&self) -> impl Iterator<Item = Span> {
        self.0.iter().copied()
    }

    /// Adds a range.
    pub(crate) fn add(&mut self, mut range: Span) {
        let touches = |span: &Span| span.start <= range.end && range.start <= span.end;
        let (joined, apart): (Vec<Span>, Vec<Span>) = self.0.iter().partition(|span| touches(span));
        for span in joined {
            range.start = range.start.min(span.start);
            range.end = range.end.max(span.end);
        }
        self.0 = apart;
        self.0.insert(self.from(range.start), range);
    }

    /// Removes a range.
    pub(crate) fn remove(&mut self, range: Span) {
        let rest = self.0.iter().flat_map(|span| {
            let before = span.start..range.start.clamp(span.start, span.end);
            let after = range.end.clamp(span.start, span.end)..span.end;
            [before, after]
        });
        let rest = rest.filter(|rest| rest.start < rest.end);
        self.0 = rest.map(Span::from).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_joined_and_cut() {
        let span = |start, end| Span::from(start..end);
        let mut spans = Spans::default();
        spans.add(span(10, 20));
        spans.add(span(30, 40));
        spans.add(span(20, 30));
        assert_eq!(spans.at(25), Some(span(10, 40)));
        spans.remove(span(15, 20));
        assert_eq!((spans.at(14), spans.at(15)), (Some(span(10, 15)), None));
        assert_eq!(spans.at(20), Some(span(20, 40)));
        assert!(spans.overlap(span(0, 11)) && !spans.overlap(span(15, 20)));
        spans.remove(span(0, 100));
        assert!(!spans.overlap(span(0, 100)));
        for start in [70, 10, 50, 30] {
            spans.add(span(start, start + 5));
        }
        let starts: Vec<u64> = spans.all().map(|span| span.start).collect();
        assert_eq!(starts, [10, 30, 50, 70]);
        assert!(spans.overlap(span(54, 70)) && !spans.overlap(span(55, 70)));
        let within: Vec<Span> = spans.within(span(12, 51)).collect();
        assert_eq!(within, [span(12, 15), span(30, 35), span(50, 51)]);
        assert_eq!(spans.within(span(15, 30)).count(), 0);
        assert_eq!((spans.at(72), spans.at(75)), (Some(span(70, 75)), None));
    }
}
