//! The tests of crate `store`, as one program: one link instead of 39.

#![allow(unreachable_pub)]
#![allow(clippy::unwrap_used, missing_docs, reason = "tests: what cannot go on ends here")]

mod api_apply;
mod api_attacks;
mod api_backup;
mod api_bad_input;
mod api_binding;
mod api_costs;
mod api_deletes;
mod api_ephemeral_containers;
mod api_eviction;
mod api_fuzz;
mod api_gateway_api;
mod api_gateway_api_experimental;
mod api_limits;
mod api_mesh;
mod api_optimistic_update;
mod api_paged_list;
mod api_rbac;
mod api_reads;
mod api_replay;
mod api_server;
mod api_services;
mod api_status_shape;
mod api_wire;
mod dice;
mod engine_basics;
mod engine_encryption;
mod engine_faults;
mod engine_properties;
mod folder;
mod full_disk;
mod gateway_api_cases;
mod history;
mod kube_runtime;
mod kubectl;
mod kubectl_apply;
mod kubectl_debug;
mod kubectl_lists;
mod kubectl_rbac;
mod kubectl_suite;
mod kubectl_typed;
mod node_policy;
mod python_client;
mod route_grammar;
mod served;
mod world;
