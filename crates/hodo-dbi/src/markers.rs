//! Markers: instructions at which a program says where the parts of its run begin and end that are to be observed. They
//! are USDT probes, so files list them, also those without symbols.

use hodo_module::mapped::of_mapping;
use hodo_ptrace::maps::Mapping;
use rustc_hash::FxHashMap;

/// The provider of the probes.
const PROVIDER: &str = "hodo_mem";

/// What a marker says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Marker {
    /// A part begins here.
    Start,
    /// It ends here.
    Stop,
}

impl Marker {
    fn named(name: &str) -> Option<Self> {
        match name {
            "start" => Some(Self::Start),
            "stop" => Some(Self::Stop),
            _ => None,
        }
    }

    /// In how many parts a process is after this marker that was in this many before.
    pub(crate) fn after(self, depth: u32) -> u32 {
        match self {
            Self::Start => depth.saturating_add(1),
            Self::Stop => depth.saturating_sub(1),
        }
    }
}

/// The markers of the files that programs have mapped.
#[derive(Debug, Default)]
pub(crate) struct Markers {
    /// By device and inode: offsets in the file, and what is there.
    files: FxHashMap<(u64, u64), Vec<(u64, Marker)>>,
    /// Some process has mapped one,
    pub(crate) are_there: bool,
    /// and reached one at which a part begins.
    pub(crate) have_begun: bool,
}

impl Markers {
    /// The addresses of the markers in a mapping of a process.
    pub(crate) fn of(&mut self, pid: i32, map: &Mapping) -> Vec<(u64, Marker)> {
        let read = || {
            let image = of_mapping(pid, map);
            let probes = image.map(|(_, image)| image.probes_of(PROVIDER));
            let probes = probes.unwrap_or_default().into_iter();
            let markers = probes.filter_map(|(name, offset)| Some((offset, Marker::named(&name)?)));
            markers.collect()
        };
        let all = self
            .files
            .entry((map.device, map.inode))
            .or_insert_with(read);
        let place = |&(offset, marker): &(u64, Marker)| {
            let at = map.start + offset.checked_sub(map.offset)?;
            map.span().contains(at).then_some((at, marker))
        };
        all.iter().filter_map(place).collect()
    }

    /// Why nothing was observed.
    pub(crate) fn why_nothing(&self) -> &'static str {
        match self.are_there {
            true => "nothing was observed: the program has not called hodo_mem_start()",
            false => {
                "nothing was observed: neither the program nor a library that it has loaded has markers \
                 (hodo_mem_start() of hodo-mem.h, or of the crate hodo-mem-marks)"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_nested_and_a_stop_alone_is_nothing() {
        let depth =
            |markers: &[Marker]| markers.iter().fold(0, |depth, marker| marker.after(depth));
        use Marker::{Start, Stop};
        assert_eq!(depth(&[Start, Start, Stop]), 1);
        assert_eq!(depth(&[Stop, Stop, Start]), 1);
        assert_eq!(depth(&[Start, Stop, Stop]), 0);
        assert_eq!(Marker::named("start"), Some(Start));
        assert_eq!(Marker::named("started"), None);
    }
}
