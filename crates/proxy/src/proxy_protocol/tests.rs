//! Tests of PROXY protocol headers: both versions, malformed ones, and any bytes.

use proptest::prelude::*;

use super::*;

fn parse(mut bytes: &[u8]) -> (io::Result<Option<ConnectionAddresses>>, usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let before = bytes.len();
    let result = runtime.block_on(read(&mut bytes));
    (result, before - bytes.len())
}

fn pair(client: &str, local: &str) -> ConnectionAddresses {
    let address = |text: &str| text.parse().expect("an address");
    ConnectionAddresses { client: address(client), local: address(local) }
}

#[test]
fn lines_of_version_1_are_read() {
    let found = |line: &str| parse(format!("{line}\r\nGET /").as_bytes()).0.ok();
    let four = pair("192.0.2.7:4000", "198.51.100.1:443");
    assert_eq!(found("PROXY TCP4 192.0.2.7 198.51.100.1 4000 443"), Some(Some(four)));
    let six = pair("[2001:db8::7]:1", "[2001:db8::1]:65535");
    assert_eq!(found("PROXY TCP6 2001:db8::7 2001:db8::1 1 65535"), Some(Some(six)));
    for unknown in ["PROXY UNKNOWN", "PROXY UNKNOWN ffff::1 ffff::2 1 2"] {
        assert_eq!(found(unknown), Some(None), "{unknown}");
    }
    for wrong in [
        "PROXY TCP4 192.0.2.7 198.51.100.1 4000",
        "PROXY TCP4 192.0.2.7 198.51.100.1 4000 443 1",
        "PROXY TCP4  192.0.2.7 198.51.100.1 4000 443",
        "PROXY TCP4 2001:db8::7 2001:db8::1 1 2",
        "PROXY TCP6 192.0.2.7 198.51.100.1 4000 443",
        "PROXY TCP4 192.0.2.07 198.51.100.1 4000 443",
        "PROXY TCP4 192.0.2.7 198.51.100.1 +400 443",
        "PROXY TCP4 192.0.2.7 198.51.100.1 70000 443",
        "PROXY UDP4 192.0.2.7 198.51.100.1 4000 443",
        "proxy TCP4 192.0.2.7 198.51.100.1 4000 443",
        "PROXY UNKNOWNX",
        "GET / HTTP/1.1",
    ] {
        assert_eq!(found(wrong), None, "{wrong}");
    }
    let endless = [b"PROXY UNKNOWN ".to_vec(), vec![b'x'; 1000]].concat();
    assert_eq!(parse(&endless).1, MAX_LINE, "an endless line is not read on");
}

#[test]
fn extensions_of_version_2_are_skipped_and_other_commands_refused() {
    let header = |command: u8, family: u8, rest: &[u8]| {
        let length = u16::try_from(rest.len()).expect("short").to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, rest, b"next"].concat()
    };
    let addresses = [192, 0, 2, 7, 198, 51, 100, 1, 0x0f, 0xa0, 1, 0xbb];
    let extended = [&addresses[..], &[4; 5000]].concat();
    for rest in [&addresses[..], &extended] {
        let bytes = header(0x21, 0x11, rest);
        let (found, read) = parse(&bytes);
        assert_eq!(found.ok(), Some(Some(pair("192.0.2.7:4000", "198.51.100.1:443"))));
        assert_eq!(read, bytes.len() - 4, "not a byte more");
    }
    for (command, family) in [(0x20, 0), (0x20, 0x11), (0x21, 0), (0x21, 0x31)] {
        assert_eq!(parse(&header(command, family, &addresses)).0.ok(), Some(None));
    }
    for (command, family) in [(0x11, 0x11), (0x22, 0x11), (0x2f, 0), (0x21, 0x13), (0x21, 0x41)] {
        assert!(parse(&header(command, family, &addresses)).0.is_err(), "{command:x} {family:x}");
    }
    assert!(parse(&header(0x21, 0x11, &addresses[..11])).0.is_err(), "too short for its family");
    assert!(parse(&header(0x21, 0x21, &addresses)).0.is_err(), "too short for its family");
}

proptest! {
    #[test]
    fn what_is_written_is_read(client: SocketAddr, local: SocketAddr, v2: bool, next: Vec<u8>) {
        let version = if v2 { ProxyProtocol::V2 } else { ProxyProtocol::V1 };
        let mut bytes = write(version, &ConnectionAddresses { client, local });
        let length = bytes.len();
        bytes.extend(next);
        let (found, read) = parse(&bytes);
        prop_assert_eq!(read, length);
        let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let (client, local) = (plain(client), plain(local));
        let same_family = client.is_ipv4() == local.is_ipv4();
        prop_assert_eq!(found.ok(), Some(same_family.then_some(ConnectionAddresses { client, local })));
    }

    #[test]
    fn any_bytes_are_read_or_refused(start in 0..3usize, bytes: Vec<u8>) {
        let start: &[u8] = [&b""[..], b"PROXY TCP4 ", &SIGNATURE][start];
        let _ = parse(&[start, &bytes].concat());
    }
}
