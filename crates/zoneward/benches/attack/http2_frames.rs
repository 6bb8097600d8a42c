//! The few HTTP/2 frames that attacks send.

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Preface and SETTINGS with the initial window of streams.
pub fn begin(window: u32) -> Vec<u8> {
    let settings = [&4u16.to_be_bytes()[..], &window.to_be_bytes()].concat();
    [PREFACE, &frame(4, 0, 0, &settings), &window_update(0, 1 << 30)].concat()
}

/// A complete GET on a stream.
pub fn get(stream: u32, path: &str) -> Vec<u8> {
    // Indexed fields: GET, http; then path and authority as literals with indexed names (RFC 7541, 6.2.2).
    let mut block = vec![0x82, 0x86];
    for (name, value) in [(4, path), (1, "shop")] {
        block.extend([name, u8::try_from(value.len()).unwrap()]);
        block.extend(value.as_bytes());
    }
    frame(1, 5, stream, &block)
}

pub fn window_update(stream: u32, by: u32) -> Vec<u8> {
    frame(8, 0, stream, &by.to_be_bytes())
}

pub fn settings_ack() -> Vec<u8> {
    frame(4, 1, 0, &[])
}
