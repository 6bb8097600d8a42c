//! Building blocks of messages, and hand-encoded fields where a map's iteration order would change the version.

use std::net::{IpAddr, SocketAddr};

use envoy_types::pb::envoy::config::core::v3::{
    Address, AggregatedConfigSource, ApiVersion, ConfigSource, DataSource, SocketAddress, address,
    config_source::ConfigSourceSpecifier, data_source::Specifier, socket_address::PortSpecifier,
};
use envoy_types::pb::google::protobuf::{Any, BoolValue, Duration, UInt32Value};
use prost::{Message, Name};

pub(super) fn any<M: Message + Name>(message: &M) -> Any {
    Any { type_url: M::type_url(), value: message.encode_to_vec() }
}

pub(super) fn number(value: u32) -> Option<UInt32Value> {
    Some(UInt32Value { value })
}

pub(super) fn yes() -> Option<BoolValue> {
    Some(BoolValue { value: true })
}

pub(super) fn no() -> Option<BoolValue> {
    Some(BoolValue { value: false })
}

pub(super) fn seconds(seconds: i64) -> Option<Duration> {
    Some(Duration { seconds, nanos: 0 })
}

pub(super) fn duration(time: std::time::Duration) -> Option<Duration> {
    let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    Some(Duration { seconds, nanos: i32::try_from(time.subsec_nanos()).unwrap_or(0) })
}

/// From the same ADS stream.
pub(super) fn same_stream() -> Option<ConfigSource> {
    Some(ConfigSource {
        resource_api_version: ApiVersion::V3.into(),
        config_source_specifier: Some(ConfigSourceSpecifier::Ads(AggregatedConfigSource {})),
        ..ConfigSource::default()
    })
}

pub(super) fn address(at: SocketAddr) -> Option<Address> {
    let socket = SocketAddress {
        address: at.ip().to_string(),
        // The unspecified address serves both families.
        ipv4_compat: matches!(at.ip(), IpAddr::V6(ip) if ip.is_unspecified()),
        port_specifier: Some(PortSpecifier::PortValue(at.port().into())),
        ..SocketAddress::default()
    };
    Some(Address { address: Some(address::Address::SocketAddress(socket)) })
}

pub(super) fn source(specifier: Specifier) -> Option<DataSource> {
    Some(DataSource { specifier: Some(specifier), ..DataSource::default() })
}

/// Appends a length-delimited field.
pub(super) fn append(message: &mut Vec<u8>, field: u32, content: &[u8]) {
    append_varint(message, u64::from(field << 3 | 2));
    append_varint(message, content.len() as u64);
    message.extend_from_slice(content);
}

fn append_varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        message.push(value as u8 | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
}
