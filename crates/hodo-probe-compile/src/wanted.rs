//! The places that definitions name, by address. There may be millions, so what the places of one function have in
//! common is stored once.

use std::rc::Rc;

use hodo_probe_syntax::Definition;

/// Places of one function that a definition names, before it is known what belongs to them.
pub(super) struct Found {
    /// The function.
    pub symbol: Rc<str>,
    /// Link-time address from which its places are counted.
    pub start: u64,
    /// Link-time addresses of the places.
    pub addrs: Vec<u64>,
}

impl Found {
    /// One place, and its distance from the function's beginning.
    pub fn one(addr: u64, symbol: &str, offset: u64) -> Self {
        Self {
            symbol: symbol.into(),
            start: addr.wrapping_sub(offset),
            addrs: vec![addr],
        }
    }
}

/// What is known about a place that a definition names, except its address.
#[derive(Debug, Clone)]
pub(super) struct ProbePoint {
    pub definition: usize,
    pub symbol: Rc<str>,
    /// Link-time address from which the function's places are counted.
    pub start: u64,
    /// It is the function's return, not the instruction.
    pub returns: bool,
    /// The definition with places in place of variables, if it has any.
    pub resolved: Option<Rc<Definition>>,
    /// By argument: as what it is shown, if its type does not say that.
    pub shown: Rc<[Option<&'static str>]>,
}

impl ProbePoint {
    /// The distance of its place at an address from the function's beginning.
    pub fn offset(&self, addr: u64) -> u64 {
        addr.wrapping_sub(self.start)
    }
}

/// The places of a file.
#[derive(Debug, Default)]
pub(super) struct Places {
    points: Vec<ProbePoint>,
    /// Link-time addresses, and indices in `points`.
    all: Vec<(u64, u32)>,
}

impl Places {
    /// Adds what several places have in common. Returns its number.
    pub fn add(&mut self, point: ProbePoint) -> u32 {
        self.points.push(point);
        u32::try_from(self.points.len() - 1).expect("a file has fewer functions and probes")
    }

    /// Adds a place.
    pub fn put(&mut self, addr: u64, point: u32) {
        self.all.push((addr, point));
    }

    /// Puts them in the order of their addresses, when all are added; those of one address stay in the order in which
    /// they came.
    pub fn sort(&mut self) {
        self.all.sort_by_key(|&(addr, _)| addr);
        self.all.shrink_to_fit();
    }

    /// What is known about all of them.
    pub fn points(&self) -> impl Iterator<Item = &ProbePoint> {
        self.points.iter()
    }

    /// All places.
    pub fn all(&self) -> impl Iterator<Item = (u64, &ProbePoint)> {
        let all = self.all.iter();
        all.map(|&(addr, point)| (addr, &self.points[point as usize]))
    }

    /// The places at an address. `near`: where those of the address before were, which saves looking for the next.
    pub fn at(&self, addr: u64, near: &mut usize) -> impl Iterator<Item = &ProbePoint> {
        /// This many are passed one after the other.
        const FEW: usize = 16;
        let is_before = |at: usize| self.all.get(at).is_some_and(|place| place.0 < addr);
        let mut first = *near;
        if first > self.all.len() || first > 0 && !is_before(first - 1) || is_before(first + FEW) {
            first = self.all.partition_point(|place| place.0 < addr);
        }
        while is_before(first) {
            first += 1;
        }
        *near = first;
        let here = self.all[first..].iter();
        here.take_while(move |place| place.0 == addr)
            .map(|&(_, point)| &self.points[point as usize])
    }

    /// Takes out the places for which `refused` has a reason.
    pub fn take_out(
        &mut self,
        mut refused: impl FnMut(u64, &ProbePoint) -> Option<String>,
    ) -> Vec<(u64, ProbePoint, String)> {
        let mut out = Vec::new();
        let points = &self.points;
        self.all.retain(|&(addr, point)| {
            let point = &points[point as usize];
            let reason = refused(addr, point);
            let stays = reason.is_none();
            out.extend(reason.map(|reason| (addr, point.clone(), reason)));
            stays
        });
        out
    }

    /// The addresses, each once.
    pub fn addresses(&self) -> Vec<u64> {
        let mut addresses: Vec<u64> = self.all.iter().map(|place| place.0).collect();
        addresses.dedup();
        addresses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_wherever_one_looks_first() {
        const NONE: [usize; 0] = [];
        let mut places = Places::default();
        let point = |definition| ProbePoint {
            definition,
            symbol: "f".into(),
            start: 0x10,
            returns: false,
            resolved: None,
            shown: [].into(),
        };
        let (first, second) = (places.add(point(0)), places.add(point(1)));
        for addr in (0x10..0x90).step_by(2) {
            places.put(addr, first);
        }
        for addr in [0x80, 0x20, 0x300] {
            places.put(addr, second);
        }
        places.sort();
        for near in [0, 1, 17, 66, 67, 1000] {
            let at = |addr| -> Vec<usize> {
                let mut near = near;
                let found = places.at(addr, &mut near);
                found.map(|point| point.definition).collect()
            };
            assert_eq!(at(0x0E), NONE, "{near}");
            assert_eq!(at(0x10), [0], "{near}");
            assert_eq!(at(0x11), NONE, "{near}");
            assert_eq!(at(0x20), [0, 1], "{near}");
            assert_eq!(at(0x80), [0, 1], "{near}");
            assert_eq!(at(0x8E), [0], "{near}");
            assert_eq!(at(0x300), [1], "{near}");
            assert_eq!(at(0x301), NONE, "{near}");
        }
        assert_eq!(places.addresses().len(), 65);
        let out =
            places.take_out(|addr, point| (point.definition == 1).then(|| format!("{addr:x}")));
        let out: Vec<_> = out
            .into_iter()
            .map(|(addr, _, reason)| (addr, reason))
            .collect();
        assert_eq!(out[0], (0x20, "20".to_owned()));
        assert_eq!((out.len(), places.all().count()), (3, 64));
    }
}
