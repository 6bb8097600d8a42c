//! The tests of the command line and its daemons, as one program: one link instead of 51.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests: what cannot go on ends here")]

#[path = "../../dataplane/tests/packetflow/addresses.rs"]
mod addresses;
mod backup;
mod backup_schedule;
mod chart;
mod cleanup;
mod cluster;
mod command_line;
mod command_lines;
#[path = "../../dataplane/tests/packetflow/connect.rs"]
mod connect;
mod controller;
mod crds;
mod daemons;
mod dashboard;
mod demo;
mod demo_kept;
mod dns;
mod drain_zone;
mod encryption;
mod envoy_live;
mod examples;
mod examples_hints;
mod examples_routes;
mod export;
mod gateway_api;
mod guides;
mod health_checks;
mod help;
mod history;
#[path = "../../xds/tests/envoy/http.rs"]
#[allow(dead_code, reason = "its own crate uses the rest of it")]
mod http;
mod join;
mod leader;
mod live;
mod machine;
mod mesh;
mod mesh_envoy;
mod mesh_live;
mod migrate;
mod monitoring;
#[path = "../../dataplane/tests/namespace.rs"]
#[allow(dead_code, reason = "its own crate uses the rest of it")]
mod namespace;
#[path = "../../dataplane/tests/packetflow/net.rs"]
mod net;
mod node;
mod node_ipvs;
mod node_live;
mod observe;
mod plan_addresses;
mod preflight;
#[path = "../../xds/tests/envoy/process.rs"]
#[allow(dead_code, reason = "its own crate uses the rest of it")]
mod process;
#[path = "../../dataplane/tests/packetflow/sctp.rs"]
#[allow(dead_code, reason = "its own crate uses the rest of it")]
mod sctp;
mod shop;
mod simulate;
#[path = "../../dataplane/tests/packetflow/site.rs"]
#[allow(dead_code, reason = "its own crate uses the rest of it")]
mod site;
mod started;
mod status;
mod store;
mod subsetting;
mod sysdump;
mod systemd;
mod up;
mod upgrade;
mod vectors;
