//! Which addresses an endpoint may have. An operator who adds one could otherwise have a front ask the servers behind
//! the firewall for them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether an address belongs to this host, to a private network or to nobody, by the registries of special-purpose
/// addresses (RFC 6890 and its successors).
pub(super) fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_private_v4(address),
        IpAddr::V6(address) => is_private_v6(address),
    }
}

fn is_private_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = match (a, b, c) {
        // This network, shared by carriers, protocol assignments, benchmarks, and everything from multicast upwards.
        (0, ..) | (100, 64..=127, _) | (192, 0, 0) | (198, 18..=19, _) | (224..=255, ..) => true,
        _ => false,
    };
    is_special || address.is_private() || address.is_loopback() || address.is_link_local()
}

fn is_private_v6(address: Ipv6Addr) -> bool {
    if let Some(inner) = v4_inside(address) {
        return is_private_v4(inner);
    }
    let first = address.segments()[0];
    // Only 2000::/3 is assigned to the public; 2002::/16 and 2001::/32 are tunnels to any IPv4 address.
    first & 0xe000 != 0x2000 || first == 0x2002 || address.segments()[..2] == [0x2001, 0]
}

/// The IPv4 address that an IPv6 address stands for.
fn v4_inside(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, high, low] = address.segments();
    let translated = [a, b, c, d, e, f] == [0x64, 0xff9b, 0, 0, 0, 0];
    let inside = || {
        let [one, two] = high.to_be_bytes();
        let [three, four] = low.to_be_bytes();
        Ipv4Addr::new(one, two, three, four)
    };
    address.to_ipv4_mapped().or_else(|| translated.then(inside))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_host_and_of_private_networks_are_private() {
        for private in [
            "127.0.0.1",
            "127.8.8.8",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "192.0.0.8",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:0:1::",
        ] {
            assert!(is_private(private.parse().expect("an address")), "{private}");
        }
        for public in
            ["8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8"]
        {
            assert!(!is_private(public.parse().expect("an address")), "{public}");
        }
    }
}
