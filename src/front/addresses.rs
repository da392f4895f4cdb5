//! Whose address a request comes from: the client's, or that of a proxy which names its client in a header.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::http::HeaderMap;
use ipnet::IpNet;

use super::open_counts::{Counted, OpenCounts};

/// The proxies whose word about their clients is believed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustedProxies(Vec<IpNet>);

/// A text that is neither an address nor a network.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is neither an address nor a network, such as 10.0.0.0/8")]
pub struct InvalidNetwork(String);

impl TrustedProxies {
    /// Parses addresses and networks, separated by commas. An empty text means that no proxy is trusted.
    pub fn parse(text: &str) -> Result<Self, InvalidNetwork> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let network = |part: &str| {
            let address = || part.parse::<IpAddr>().map(IpNet::from);
            part.parse::<IpNet>().or_else(|_| address()).map_err(|_| InvalidNetwork(part.to_owned()))
        };
        Ok(Self(parts.map(network).collect::<Result<_, _>>()?))
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// The client whose request came from `peer`. `None` if that is a proxy which passes on no address.
    ///
    /// Each proxy appends the address that it was called from, so the last address that is no proxy's is the client's:
    /// anyone can send those before it. A header that cannot be read does not hide its sender: then the peer counts.
    pub(super) fn client(&self, peer: IpAddr, headers: &HeaderMap, header: Option<&str>) -> Option<IpAddr> {
        if !self.contains(peer) {
            return Some(peer);
        }
        let values = headers.get_all(header?).iter().rev();
        let passed = values.flat_map(|value| value.as_bytes().rsplit(|byte| *byte == b','));
        for part in passed {
            match address(part.trim_ascii()) {
                Some(address) if self.contains(address) => {}
                Some(client) => return Some(client),
                None => break,
            }
        }
        Some(peer)
    }
}

/// The client of a request for a stream, among what the request carries. `None` if a proxy passes on no address.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientAddress(pub(super) Option<IpAddr>);

/// An address, which some proxies write with its port.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let socket = || text.parse::<SocketAddr>().map(|socket| socket.ip());
    text.parse().or_else(|_| socket()).ok()
}

/// The network that one client holds: an IPv6 client has 2^64 addresses, a /64 network.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        v4 => v4,
    }
}

/// Counts the open connections of each client, and refuses those above a bound.
#[derive(Clone)]
pub(super) struct Connections {
    open: Arc<OpenCounts<IpAddr>>,
    proxies: TrustedProxies,
}

impl Connections {
    pub(super) fn new(most: usize, proxies: TrustedProxies) -> Self {
        Self { open: Arc::new(OpenCounts::new(most)), proxies }
    }

    /// A place for one more connection; `None` above the bound. Proxies always get one, which does not count.
    pub(super) fn place(&self, peer: IpAddr) -> Option<Option<Counted<IpAddr>>> {
        if self.proxies.contains(peer) { Some(None) } else { self.open.enter(network(peer)).map(Some) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(peer: &str, header: Option<&str>, passed: &[&'static str]) -> Option<String> {
        let proxies = TrustedProxies::parse("10.0.0.0/8, ::1,127.0.0.1").expect("networks");
        let mut headers = HeaderMap::new();
        for value in passed {
            headers.append("x-forwarded-for", (*value).parse().expect("a value"));
        }
        proxies.client(peer.parse().expect("an address"), &headers, header).map(|client| client.to_string())
    }

    #[test]
    fn only_a_trusted_proxy_is_believed() {
        let header = Some("x-forwarded-for");
        let shown = |peer: &str, passed: &[&'static str]| client(peer, header, passed).expect("a client");
        assert_eq!(shown("192.0.2.9", &["1.1.1.1"]), "192.0.2.9", "a stranger's header");
        assert_eq!(shown("10.0.0.1", &["1.1.1.1, 2.2.2.2"]), "2.2.2.2", "the proxy wrote the last");
        assert_eq!(shown("10.0.0.1", &["1.1.1.1, 2.2.2.2, 10.9.9.9"]), "2.2.2.2", "behind two proxies");
        assert_eq!(shown("10.0.0.1", &["1.1.1.1", "2.2.2.2:4711"]), "2.2.2.2", "two headers, and a port");
        assert_eq!(shown("::ffff:10.0.0.1", &["2001:db8::1"]), "2001:db8::1", "the same proxy over IPv6");
        assert_eq!(shown("10.0.0.1", &["2.2.2.2, nobody"]), "10.0.0.1", "unreadable");
        assert_eq!(shown("10.0.0.1", &[]), "10.0.0.1", "missing");
        assert_eq!(client("10.0.0.1", None, &["2.2.2.2"]), None, "a proxy that passes on nothing");
        assert!(TrustedProxies::parse("10.0.0.0/8, proxy").is_err());
    }

    #[test]
    fn a_network_has_a_bound_of_connections_and_a_proxy_has_none() {
        let connections = Connections::new(2, TrustedProxies::parse("127.0.0.1").expect("an address"));
        let place = |peer: &str| connections.place(peer.parse().expect("an address"));
        let held = [place("2001:db8::1"), place("2001:db8::2")];
        assert!(held.iter().all(Option::is_some) && place("2001:db8::3").is_none());
        assert!(place("2001:db8:0:1::1").is_some(), "another network");
        drop(held);
        assert!(place("2001:db8::3").is_some());
        let proxied: Vec<_> = (0..9).map(|_| place("127.0.0.1")).collect();
        assert!(proxied.iter().all(Option::is_some));
        drop(proxied);
        assert!(connections.open.is_empty(), "nothing is kept");
    }
}
