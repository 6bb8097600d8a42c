//! The limits of HTTP/2 in both directions: streams, header lists, flow-control windows, keepalive.

use std::time::Duration;

use hyper::{client, server};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::settings::ProxyLimits;

/// Streams on one upstream connection before another connection is established.
pub(crate) const MAX_UPSTREAM_STREAMS: u32 = 100;
/// HTTP/2 connections to one endpoint.
pub(crate) const MAX_UPSTREAM_CONNECTIONS: usize = 16;
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const DOWNSTREAM_KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);
const UPSTREAM_KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn server(limits: &ProxyLimits) -> server::conn::http2::Builder<TokioExecutor> {
    let mut builder = server::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(max_header_list(limits))
        .initial_stream_window_size(stream_window(limits))
        .initial_connection_window_size(connection_window(limits, limits.streams))
        .max_send_buf_size(limits.buffer)
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(DOWNSTREAM_KEEPALIVE_TIMEOUT)
        .enable_connect_protocol();
    builder
}

pub(crate) fn client(limits: &ProxyLimits) -> client::conn::http2::Builder<TokioExecutor> {
    let mut builder = client::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_header_list_size(max_header_list(limits))
        .initial_stream_window_size(stream_window(limits))
        .initial_connection_window_size(connection_window(limits, MAX_UPSTREAM_STREAMS))
        .max_send_buf_size(limits.buffer)
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(UPSTREAM_KEEPALIVE_TIMEOUT);
    builder
}

fn max_header_list(limits: &ProxyLimits) -> u32 {
    u32::try_from(limits.header_bytes).unwrap_or(u32::MAX)
}

fn stream_window(limits: &ProxyLimits) -> u32 {
    u32::try_from(limits.buffer).unwrap_or(u32::MAX).clamp(65_535, 1 << 24)
}

/// Room for many streams that are not read, so that they do not block the others.
fn connection_window(limits: &ProxyLimits, streams: u32) -> u32 {
    stream_window(limits).saturating_mul(streams).clamp(1 << 20, 1 << 24)
}
