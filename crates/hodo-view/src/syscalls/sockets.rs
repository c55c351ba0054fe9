//! What the sockets of a program are connected to (`-yy`).
//!
//! The calls that make, bind and connect sockets say most of it. What the kernel chose (numbers of sockets and ports)
//! is looked up in `/proc/PID/net` shortly after, when the socket may be gone: then it is left out, or `?`.

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::structs::socket_name;
use super::text::number;

const UNIX: u64 = 1;
const INET: u64 = 2;
const INET6: u64 = 10;
const NETLINK: u64 = 16;
const STREAM: u64 = 1;
const DATAGRAM: u64 = 2;
const RAW: u64 = 3;

/// The protocols of netlink sockets, by number. One is not used.
const NETLINKS: [&str; 23] = [
    "ROUTE",
    "UNUSED",
    "USERSOCK",
    "FIREWALL",
    "SOCK_DIAG",
    "NFLOG",
    "XFRM",
    "SELINUX",
    "ISCSI",
    "AUDIT",
    "FIB_LOOKUP",
    "CONNECTOR",
    "NETFILTER",
    "IP6_FW",
    "DNRTMSG",
    "KOBJECT_UEVENT",
    "GENERIC",
    "",
    "SCSITRANSPORT",
    "ECRYPTFS",
    "RDMA",
    "CRYPTO",
    "SMC",
];

/// Returns the name of a protocol of netlink sockets.
pub(super) fn netlink(protocol: u64) -> Option<&'static str> {
    let name = NETLINKS.get(usize::try_from(protocol).ok()?)?;
    (!name.is_empty()).then_some(name)
}

/// The lists of sockets in `/proc/PID/net`, and the protocols of what is there.
const LISTS: [(&str, &str); 10] = [
    ("tcp", "TCP"),
    ("tcp6", "TCPv6"),
    ("udp", "UDP"),
    ("udp6", "UDPv6"),
    ("udplite", "UDPLITE"),
    ("udplite6", "UDPLITEv6"),
    ("raw", "RAW"),
    ("raw6", "RAWv6"),
    ("unix", "UNIX"),
    ("netlink", "NETLINK"),
];

/// What only the kernel knows of sockets, and `/proc` does not say.
#[derive(Debug, Clone, Copy)]
pub struct SocketQueries {
    /// Returns the number of the socket to which the `AF_UNIX` socket of this number is connected.
    pub unix_peer: fn(u64) -> Option<u64>,
    /// Returns the kernel's name of the protocol of a socket, which a path in `/proc/PID/fd` names.
    pub protocol: fn(&Path) -> Option<String>,
}

/// Where a socket is, and where its other end is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Ends {
    Inet {
        ours: Option<SocketAddr>,
        theirs: Option<SocketAddr>,
        is_connected: bool,
    },
    Unix {
        /// Its name, quoted.
        name: Option<Arc<str>>,
        /// The number of the other end. It has none until it is accepted.
        peer: Option<u64>,
        is_connected: bool,
    },
    Netlink {
        protocol: u64,
        port: Option<u32>,
    },
    Other,
}

/// A socket, however many descriptors refer to it.
#[derive(Debug, Clone)]
pub(super) struct Socket {
    /// As the kernel calls it, where strace knows it, too.
    protocol: &'static str,
    number: Option<u64>,
    ends: Ends,
    /// When it changed, if the kernel's list has not been read since: it could not be read again yet.
    changed: Option<Instant>,
}

impl Socket {
    /// Returns the text that stands for it.
    pub fn text(&self) -> String {
        let number = self.number.map(|number| number.to_string());
        let number = number.as_deref();
        let unknown = number.unwrap_or("?");
        let inside = match &self.ends {
            Ends::Inet {
                ours,
                theirs,
                is_connected,
            } => match (ours, theirs) {
                (None, None) => number.map(str::to_owned),
                (Some(ours), None) if *is_connected => Some(format!("{ours}->?")),
                (Some(ours), None) => Some(ours.to_string()),
                (None, Some(theirs)) => Some(format!("?->{theirs}")),
                (Some(ours), Some(theirs)) => Some(format!("{ours}->{theirs}")),
            },
            Ends::Unix { name, peer, .. } => match (name, peer) {
                (None, None) => number.map(str::to_owned),
                (Some(name), None) => Some(format!("{unknown},{name}")),
                (None, Some(peer)) => Some(format!("{unknown}->{peer}")),
                (Some(name), Some(peer)) => Some(format!("{unknown}->{peer},{name}")),
            },
            Ends::Netlink {
                protocol,
                port: Some(port),
            } => Some(match netlink(*protocol) {
                Some(name) => format!("{name}:{port}"),
                None => format!("{protocol}:{port}"),
            }),
            Ends::Netlink { .. } | Ends::Other => number.map(str::to_owned),
        };
        let protocol = self.protocol;
        inside.map_or_else(
            || protocol.to_owned(),
            |inside| format!("{protocol}:[{inside}]"),
        )
    }

    /// Creates what the arguments of `socket` and `socketpair` ask for.
    pub fn new(family: u64, kind: u64, protocol: u64) -> Self {
        let six = family == INET6;
        let (protocol, ends) = match (family, kind & 0xF, protocol) {
            (UNIX, STREAM, _) => ("UNIX-STREAM", None),
            (UNIX, ..) => ("UNIX", None),
            (NETLINK, ..) => (
                "NETLINK",
                Some(Ends::Netlink {
                    protocol,
                    port: None,
                }),
            ),
            (INET | INET6, STREAM, 0 | 6) => (if six { "TCPv6" } else { "TCP" }, None),
            (INET | INET6, DATAGRAM, 0 | 17) => (if six { "UDPv6" } else { "UDP" }, None),
            (INET | INET6, DATAGRAM, 136) => (if six { "UDPLITEv6" } else { "UDPLITE" }, None),
            (INET | INET6, RAW, _) => (if six { "RAWv6" } else { "RAW" }, None),
            _ => ("socket", Some(Ends::Other)),
        };
        Self {
            protocol,
            number: None,
            ends: ends.unwrap_or_else(|| Ends::of(family)),
            changed: None,
        }
    }

    /// Creates the socket that `accept` returns for this one.
    pub fn accepted(&self) -> Self {
        let ends = match &self.ends {
            // One that listens at all addresses gets connections at one of them.
            Ends::Inet { ours, .. } => Ends::Inet {
                ours: ours.filter(|ours| !ours.ip().is_unspecified()),
                theirs: None,
                is_connected: true,
            },
            Ends::Unix { name, .. } => Ends::Unix {
                name: name.clone(),
                peer: None,
                is_connected: true,
            },
            other => other.clone(),
        };
        Self {
            protocol: self.protocol,
            number: None,
            ends,
            changed: None,
        }
    }

    /// Takes the address that it is bound to, or that it turned out to have.
    pub fn bound(&mut self, address: &[u8]) {
        match &mut self.ends {
            Ends::Inet { ours, .. } => *ours = inet(address).filter(|found| found.port() != 0),
            Ends::Unix { name, .. } => *name = socket_name(address).map(Into::into),
            Ends::Netlink { port, .. } => {
                *port = Some(number(address, 4, 4) as u32).filter(|port| *port != 0);
            }
            Ends::Other => {}
        }
    }

    /// Takes the address of the other end.
    pub fn connected(&mut self, address: &[u8]) {
        match &mut self.ends {
            Ends::Inet {
                ours,
                theirs,
                is_connected,
            } => {
                // The kernel now chooses the socket's own address, also if there was one that stands for all.
                *ours = ours.filter(|ours| !ours.ip().is_unspecified());
                *theirs = inet(address);
                *is_connected = theirs.is_some();
            }
            Ends::Unix {
                peer, is_connected, ..
            } => {
                *peer = None;
                *is_connected = number(address, 0, 2) == UNIX;
            }
            Ends::Netlink { .. } | Ends::Other => {}
        }
    }

    /// Returns whether the kernel's list must be read before it is complete.
    pub fn awaits_list(&self) -> bool {
        self.changed.is_some()
    }

    /// Returns whether its other end had no number yet when that was asked for.
    pub fn awaits_peer(&self) -> bool {
        matches!(
            self.ends,
            Ends::Unix {
                peer: None,
                is_connected: true,
                ..
            }
        )
    }

    /// Takes the address of the other end, where it changes nothing.
    pub fn has_peer(&mut self, address: &[u8]) {
        if let Ends::Inet { theirs, .. } = &mut self.ends {
            *theirs = inet(address).or(*theirs);
        }
    }

    /// Takes the two ends that `socketpair` made.
    pub fn pair(one: &mut Self, other: &mut Self) {
        let numbers = (one.number, other.number);
        for (this, that) in [(one, numbers.1), (other, numbers.0)] {
            if let Ends::Unix { peer, .. } = &mut this.ends {
                *peer = that;
            }
        }
    }

    /// Returns whether a list that was read before the last change says what it is now.
    fn agrees(&self, found: &Self) -> bool {
        match (&self.ends, &found.ends) {
            (
                Ends::Inet {
                    theirs,
                    is_connected,
                    ..
                },
                Ends::Inet {
                    theirs: other,
                    is_connected: other_is,
                    ..
                },
            ) => is_connected == other_is && (theirs.is_none() || theirs == other),
            (Ends::Unix { .. }, Ends::Unix { name, .. }) => name.is_some(),
            (Ends::Netlink { .. }, Ends::Netlink { port, .. }) => port.is_some(),
            _ => false,
        }
    }

    /// Adds what was found of the same socket.
    fn add(&mut self, found: Option<Self>) {
        match (&mut self.ends, found.map(|found| found.ends)) {
            (
                Ends::Inet { ours, theirs, .. },
                Some(Ends::Inet {
                    ours: address,
                    theirs: other,
                    ..
                }),
            ) => {
                *ours = ours.or(address);
                *theirs = theirs.or(other);
            }
            (Ends::Unix { name, .. }, Some(Ends::Unix { name: found, .. })) => {
                *name = name.take().or(found);
            }
            (Ends::Netlink { port, .. }, Some(Ends::Netlink { port: found, .. })) => {
                *port = port.or(found);
            }
            _ => {}
        }
    }

    /// Returns whether something is unknown that the kernel has chosen in this call.
    pub fn is_incomplete(&self, call: &str) -> bool {
        match (&self.ends, call) {
            (Ends::Inet { ours, theirs, .. }, "accept" | "accept4") => {
                ours.is_none() || theirs.is_none()
            }
            (Ends::Inet { ours, .. }, _) => ours.is_none(),
            (Ends::Unix { name, .. }, "bind") => name.is_none(),
            (Ends::Unix { peer, .. }, "connect" | "accept" | "accept4") => peer.is_none(),
            (Ends::Netlink { port, .. }, _) => port.is_none(),
            (Ends::Unix { .. } | Ends::Other, _) => false,
        }
    }
}

impl Ends {
    fn of(family: u64) -> Self {
        match family {
            UNIX => Self::Unix {
                name: None,
                peer: None,
                is_connected: false,
            },
            INET | INET6 => Self::Inet {
                ours: None,
                theirs: None,
                is_connected: false,
            },
            _ => Self::Other,
        }
    }
}

/// Looks up sockets.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    queries: Option<SocketQueries>,
    /// The lists that were read last, by the name of a network namespace and that of the list.
    lists: HashMap<(String, &'static str), List>,
}

/// A list of the kernel. With many connections, reading one takes long, and each new connection asks for one. So one
/// reading serves all that wait for it.
#[derive(Debug)]
struct List {
    /// When it was read last. Whatever changed later may be missing.
    read: Option<Instant>,
    /// How many times it can be read again at once: a few connections are shown without delay.
    left: u32,
    /// The time after which it can be read once more.
    pause: Duration,
    sockets: HashMap<u64, Socket>,
}

impl List {
    /// How many times a list can be read without pauses.
    const AT_ONCE: u32 = 8;
    /// The shortest pause. Pauses are also longer than reading takes, by [`Self::SHARE`].
    const SHORTEST: Duration = Duration::from_millis(10);
    const SHARE: u32 = 4;

    fn new() -> Self {
        Self {
            read: None,
            left: Self::AT_ONCE,
            pause: Self::SHORTEST,
            sockets: HashMap::new(),
        }
    }

    /// Returns how many times the list can be read now.
    fn left(&self, now: Instant) -> u32 {
        let since = self.read.map(|read| now.saturating_duration_since(read));
        let pauses = since.map_or(0, |since| since.as_nanos() / self.pause.as_nanos());
        let pauses = u32::try_from(pauses).unwrap_or(u32::MAX);
        self.left.saturating_add(pauses).min(Self::AT_ONCE)
    }

    /// Takes what was read from `began` to `ended`.
    fn take(&mut self, began: Instant, ended: Instant, sockets: HashMap<u64, Socket>) {
        self.left = self.left(began).saturating_sub(1);
        self.pause = Self::SHORTEST.max(ended.saturating_duration_since(began) * Self::SHARE);
        self.read = Some(began);
        self.sockets = sockets;
    }
}

impl Sockets {
    pub fn new(queries: Option<SocketQueries>) -> Self {
        Self {
            queries,
            ..Self::default()
        }
    }

    /// Completes a socket that was just made: its number. A descriptor that is another socket by now is not it, as far
    /// as that can be seen.
    pub fn number(&self, pid: &str, fd: i32, socket: &mut Socket) {
        let path = format!("/proc/{pid}/fd/{fd}");
        let Some(number) = number_of(&path) else {
            return;
        };
        let protocol = (self.queries).and_then(|queries| (queries.protocol)(Path::new(&path)));
        let is_it = protocol.is_none_or(|found| is_named(socket.protocol, &found));
        // It was the same one before and after the question.
        if is_it && number_of(&path) == Some(number) {
            socket.number = Some(number);
        }
    }

    /// Returns the socket of this number, to which a descriptor refers that we see for the first time.
    pub fn found(&mut self, pid: &str, fd: i32, number: u64) -> Socket {
        let path = format!("/proc/{pid}/fd/{fd}");
        let protocol = (self.queries).and_then(|queries| (queries.protocol)(Path::new(&path)));
        let protocol = protocol.as_deref().and_then(known_protocol);
        let now = Instant::now();
        let mut awaits_list = false;
        let list = protocol.and_then(list_of);
        for list in list.map_or(&LISTS[..], std::slice::from_ref) {
            match self.look_up(pid, *list, (number, now), |_| true) {
                Some(Some(mut socket)) => {
                    self.add_peer(pid, &mut socket);
                    return socket;
                }
                Some(None) => {}
                None => awaits_list = protocol.is_some(),
            }
        }
        let protocol = protocol.unwrap_or("socket");
        let family = match protocol {
            "UNIX" | "UNIX-STREAM" => UNIX,
            "NETLINK" | "socket" => 0,
            other if other.ends_with("v6") => INET6,
            _ => INET,
        };
        Socket {
            protocol,
            number: Some(number),
            ends: Ends::of(family),
            changed: awaits_list.then_some(now),
        }
    }

    /// Looks up what is unknown of a socket that has just changed, now or as soon as that is possible.
    pub fn complete(&mut self, pid: &str, socket: &mut Socket) {
        socket.changed = socket.number.map(|_| Instant::now());
        self.catch_up(pid, socket);
    }

    /// Looks up what is still unknown of a socket.
    pub fn catch_up(&mut self, pid: &str, socket: &mut Socket) {
        let (Some(number), Some(changed)) = (socket.number, socket.changed) else {
            return;
        };
        let found = match list_of(socket.protocol) {
            Some(list) => {
                let agrees = |found: &Socket| socket.agrees(found);
                self.look_up(pid, *list, (number, changed), agrees)
            }
            None => Some(None),
        };
        if let Some(found) = found {
            socket.changed = None;
            socket.add(found);
        }
        self.add_peer(pid, socket);
    }

    /// Asks for the number of the other end.
    pub fn add_peer(&self, pid: &str, socket: &mut Socket) {
        // Others see other sockets than hodo, which asks for its own.
        let own = || namespace("self").is_some_and(|own| Some(own) == namespace(pid));
        if let (Ends::Unix { peer, .. }, Some(number), Some(queries)) =
            (&mut socket.ends, socket.number, self.queries)
            && peer.is_none()
            && own()
        {
            *peer = (queries.unix_peer)(number);
        }
    }

    /// Returns what a list says of the socket of this number, which changed at this time. An older list will do if
    /// `is_enough` says so. Returns nothing if the list cannot be read again yet.
    fn look_up(
        &mut self,
        pid: &str,
        (list, protocol): (&'static str, &'static str),
        (number, changed): (u64, Instant),
        is_enough: impl Fn(&Socket) -> bool,
    ) -> Option<Option<Socket>> {
        let Some(namespace) = namespace(pid) else {
            return Some(None);
        };
        let known = self.lists.entry((namespace, list));
        let known = known.or_insert_with(List::new);
        let found = known.sockets.get(&number);
        if known.read.is_some_and(|read| read >= changed) || found.is_some_and(is_enough) {
            return Some(found.cloned());
        }
        let now = Instant::now();
        if known.left(now) == 0 {
            return None;
        }
        let Ok(text) = fs::read(format!("/proc/{pid}/net/{list}")) else {
            return Some(None);
        };
        let text = String::from_utf8_lossy(&text);
        let rows = text.lines().skip(1);
        let rows = rows.filter_map(|line| row(protocol, line));
        let sockets = rows.filter_map(|row| Some((row.number?, row))).collect();
        known.take(now, Instant::now(), sockets);
        Some(known.sockets.get(&number).cloned())
    }
}

/// Returns the number of a socket, to which a path in `/proc/PID/fd` leads.
fn number_of(path: &str) -> Option<u64> {
    socket_number(fs::read_link(path).ok()?.to_str()?)
}

/// Returns the number in the name that the kernel gives to a socket.
pub(super) fn socket_number(link: &str) -> Option<u64> {
    let number = link.strip_prefix("socket:[")?.strip_suffix(']')?;
    number.parse().ok()
}

fn namespace(pid: &str) -> Option<String> {
    let link = fs::read_link(format!("/proc/{pid}/ns/net")).ok()?;
    Some(link.to_string_lossy().into_owned())
}

/// Returns the name of a protocol that strace has for the kernel's.
fn known_protocol(name: &str) -> Option<&'static str> {
    let known = LISTS.iter().map(|list| list.1);
    known.chain(["UNIX-STREAM"]).find(|known| *known == name)
}

/// Returns whether this is the kernel's name of the protocol of a socket, as far as we know its names.
fn is_named(protocol: &str, name: &str) -> bool {
    known_protocol(name).is_none_or(|known| {
        // Before Linux 5.15, this is the name of all local sockets.
        known == protocol || (known, protocol) == ("UNIX", "UNIX-STREAM")
    })
}

/// Returns the list that has the sockets of a protocol.
fn list_of(protocol: &str) -> Option<&'static (&'static str, &'static str)> {
    let protocol = protocol.split('-').next();
    LISTS.iter().find(|list| Some(list.1) == protocol)
}

/// Returns the address in `struct sockaddr`, if it is one of the internet's.
fn inet(bytes: &[u8]) -> Option<SocketAddr> {
    let port = || Some(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?));
    let ip: IpAddr = match number(bytes, 0, 2) {
        INET => <[u8; 4]>::try_from(bytes.get(4..8)?).ok()?.into(),
        INET6 => <[u8; 16]>::try_from(bytes.get(8..24)?).ok()?.into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port()?))
}

/// Returns what a line of a list in `/proc/net` says.
fn row(protocol: &'static str, line: &str) -> Option<Socket> {
    let mut fields = line.split_ascii_whitespace();
    let (protocol, number, ends) = match protocol {
        "UNIX" => {
            let kind = fields.nth(4)?;
            let number = fields.nth(1)?;
            // Names may have spaces.
            let name = line
                .split_once(&format!(" {number} "))
                .map(|(_, name)| name);
            let name = name.map(|name| match name.strip_prefix('@') {
                Some(rest) => format!("@{}", super::text::quoted(rest.as_bytes(), 108, false)),
                None => super::text::quoted(name.as_bytes(), 108, false),
            });
            let protocol = if kind == "0001" {
                "UNIX-STREAM"
            } else {
                "UNIX"
            };
            let ends = Ends::Unix {
                name: name.map(Into::into),
                peer: None,
                is_connected: false,
            };
            (protocol, number, ends)
        }
        "NETLINK" => {
            let kind = fields.nth(1)?.parse().ok()?;
            let port: u32 = fields.next()?.parse().ok()?;
            let port = Some(port).filter(|port| *port != 0);
            let ends = Ends::Netlink {
                protocol: kind,
                port,
            };
            (protocol, fields.last()?, ends)
        }
        _ => {
            let ours = hex_address(fields.nth(1)?)?;
            let theirs = hex_address(fields.next()?)?;
            let theirs = Some(theirs).filter(|theirs| !theirs.ip().is_unspecified());
            let ends = Ends::Inet {
                ours: Some(ours),
                theirs,
                is_connected: theirs.is_some(),
            };
            (protocol, fields.nth(6)?, ends)
        }
    };
    Some(Socket {
        protocol,
        number: Some(number.parse().ok()?),
        ends,
        changed: None,
    })
}

/// Returns an address that is written in hex, as words of this machine's byte order.
fn hex_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = Vec::with_capacity(16);
    for word in ip.as_bytes().chunks_exact(8) {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let ip: IpAddr = match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok()?.into(),
        16 => <[u8; 16]>::try_from(bytes).ok()?.into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel() {
        let shown = |list, line| row(list, line).map(|found| found.text());
        assert_eq!(
            shown(
                "TCP",
                "   0: 0100007F:4737 0100007F:981E 01 00000000:00000000 00:00000000 00000000     0        0 25715959 1 f"
            )
            .as_deref(),
            Some("TCP:[127.0.0.1:18231->127.0.0.1:38942]")
        );
        assert_eq!(
            shown(
                "TCPv6",
                "   1: 00000000000000000000000001000000:4738 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 77 1"
            )
            .as_deref(),
            Some("TCPv6:[[::1]:18232]")
        );
        let unix = "ffff: 00000002 00000000 00010000 0001 01 25715999 /run/a b";
        assert_eq!(
            shown("UNIX", unix).as_deref(),
            Some("UNIX-STREAM:[25715999,\"/run/a b\"]")
        );
        let unnamed = "ffff: 00000002 00000000 00000000 0002 01 5";
        assert_eq!(shown("UNIX", unnamed).as_deref(), Some("UNIX:[5]"));
        let netlink = "ffff 0   26428      00000000 0        0        0     2     0     25716016";
        assert_eq!(
            shown("NETLINK", netlink).as_deref(),
            Some("NETLINK:[ROUTE:26428]")
        );
        assert!(row("TCP", "sl local_address").is_none());
    }

    #[test]
    fn lists_are_not_read_without_pauses() {
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut list = List::new();
        for _ in 0..List::AT_ONCE {
            assert!(list.left(start) > 0);
            list.take(start, start, HashMap::new());
        }
        assert_eq!(list.left(after(9)), 0);
        assert_eq!(list.left(after(10)), 1);
        // This reading takes long: later ones take a quarter of the time.
        list.take(after(10), after(60), HashMap::new());
        assert_eq!(list.left(after(209)), 0);
        assert_eq!(list.left(after(210)), 1);
        assert_eq!(list.left(after(100_000)), List::AT_ONCE);
    }

    #[test]
    fn older_lists_do_for_what_they_have() {
        let established = "0: 0100007F:4737 0100007F:981E 01 0:0 0:0 0 0 0 7 1";
        let established = row("TCP", established).expect("a socket");
        let mut socket = Socket::new(INET, STREAM, 0);
        assert!(!socket.agrees(&established));
        socket.connected(&[2, 0, 0x98, 0x1E, 127, 0, 0, 1]);
        assert!(socket.agrees(&established));
        socket.add(Some(established.clone()));
        assert_eq!(socket.text(), "TCP:[127.0.0.1:18231->127.0.0.1:38942]");
        assert!(socket.accepted().agrees(&established));
        socket.connected(&[2, 0, 0, 80, 127, 0, 0, 1]);
        assert!(!socket.agrees(&established));
    }

    #[test]
    fn kernels_have_names_of_protocols() {
        assert!(is_named("UNIX-STREAM", "UNIX-STREAM"));
        assert!(is_named("UNIX-STREAM", "UNIX"));
        assert!(!is_named("UNIX", "UNIX-STREAM"));
        assert!(!is_named("TCP", "UDP"));
        assert!(is_named("socket", "PACKET"));
        assert_eq!(list_of("UNIX-STREAM"), Some(&("unix", "UNIX")));
        assert_eq!(list_of("TCPv6"), Some(&("tcp6", "TCPv6")));
        assert_eq!(list_of("socket"), None);
    }

    #[test]
    fn what_is_unknown_is_left_out() {
        let mut socket = Socket::new(INET, STREAM | 0o2_000_000, 0);
        assert_eq!(socket.text(), "TCP");
        socket.connected(&[2, 0, 0, 80, 10, 0, 0, 1]);
        assert_eq!(socket.text(), "TCP:[?->10.0.0.1:80]");
        socket.bound(&[2, 0, 1, 0, 10, 0, 0, 2]);
        assert_eq!(socket.text(), "TCP:[10.0.0.2:256->10.0.0.1:80]");
        assert_eq!(Socket::new(17, RAW, 0).text(), "socket");
        let mut listens = Socket::new(INET, STREAM, 0);
        listens.bound(&[2, 0, 0, 80, 0, 0, 0, 0]);
        assert_eq!(listens.text(), "TCP:[0.0.0.0:80]");
        assert_eq!(listens.accepted().text(), "TCP");
        listens.bound(&[2, 0, 0, 80, 127, 0, 0, 1]);
        assert_eq!(listens.accepted().text(), "TCP:[127.0.0.1:80->?]");
    }
}
