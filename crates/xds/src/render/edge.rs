//! What happens to a request before its route is selected: its path is normalised, and headers that say where it came
//! from are replaced. Envoy's guide for the edge, with the decisions of the embedded proxy.

use envoy_types::pb::envoy::config::common::mutation_rules::v3::header_mutation::{Action, RemoveOnMatch};
use envoy_types::pb::envoy::config::common::mutation_rules::v3::HeaderMutation;
use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use envoy_types::pb::envoy::config::core::v3::{
    CidrRange, HeaderValue, HeaderValueOption, TypedExtensionConfig,
};
use envoy_types::pb::envoy::config::listener::v3::ListenerFilter;
use envoy_types::pb::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use envoy_types::pb::envoy::config::route::v3::HeaderMatcher;
use envoy_types::pb::envoy::extensions::filters::http::fault::v3::{FaultAbort, HttpFault, fault_abort};
use envoy_types::pb::envoy::extensions::filters::http::header_mutation::v3::{
    HeaderMutation as HeaderMutationFilter, Mutations,
};
use envoy_types::pb::envoy::extensions::filters::listener::proxy_protocol::v3::ProxyProtocol;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::{
    InternalAddressConfig, PathWithEscapedSlashesAction,
};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, HttpFilter, http_filter,
};
use envoy_types::pb::envoy::extensions::http::early_header_mutation::header_mutation::v3::HeaderMutation as EarlyMutation;
use envoy_types::pb::envoy::extensions::http::original_ip_detection::xff::v3::{XffConfig, XffTrustedCidrs};
use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use envoy_types::pb::envoy::r#type::matcher::v3::{RegexMatcher, StringMatcher};
use envoy_types::pb::envoy::r#type::v3::FractionalPercent;
use model::route::path::{EscapedSlashes, PathNormalization, PathParameters};
use model::route::{EdgeSettings, FORWARDED_HEADERS, Scheme, X_FORWARDED_PREFIX, error_text};

use super::listener::listener_filter;
use super::protobuf::{any, no, number, yes};

/// Whose requests a connection manager gets.
#[derive(Clone, Copy)]
pub(super) enum ClientTrust {
    /// The pod of a sidecar, whose headers stay as they are.
    Sidecar,
    TrustedProxy(Scheme),
    Untrusted(Scheme),
}

pub(super) fn normalize_paths(manager: &mut HttpConnectionManager, path: &PathNormalization) {
    manager.normalize_path = yes();
    manager.merge_slashes = path.merge_slashes;
    manager.path_with_escaped_slashes_action = match path.escaped_slashes {
        EscapedSlashes::Keep => PathWithEscapedSlashesAction::KeepUnchanged,
        EscapedSlashes::Reject => PathWithEscapedSlashesAction::RejectRequest,
        EscapedSlashes::Redirect => PathWithEscapedSlashesAction::UnescapeAndRedirect,
        EscapedSlashes::Unescape => PathWithEscapedSlashesAction::UnescapeAndForward,
    }
    .into();
}

/// Answers 400 to a path that is still ambiguous after normalisation. Envoy has no setting for it; the fault filter
/// responds by a pattern without a change of routes.
pub(super) fn ambiguous_path_filter(path: &PathNormalization) -> HttpFilter {
    let mut forms = vec!["%00", "%2[eE]", r"/\.\.?(?:;|%3[bB])"];
    // `merge_slashes` leaves two of a path that consists of slashes.
    let slashes = if path.merge_slashes { r"|//(?:\?.*)?" } else { "" };
    if path.escaped_slashes != EscapedSlashes::Keep {
        forms.extend(["%2[fF]", "%5[cC]"]);
    }
    if path.path_parameters == PathParameters::Reject {
        forms.extend([";", "%3[bB]"]);
    }
    let matcher = HeaderMatcher {
        name: ":path".to_owned(),
        header_match_specifier: Some(HeaderMatchSpecifier::StringMatch(StringMatcher {
            match_pattern: Some(MatchPattern::SafeRegex(RegexMatcher {
                regex: format!("[^?]*(?:{}).*{slashes}", forms.join("|")),
                ..RegexMatcher::default()
            })),
            ..StringMatcher::default()
        })),
        ..HeaderMatcher::default()
    };
    let fault = HttpFault {
        abort: Some(FaultAbort {
            percentage: Some(FractionalPercent { numerator: 100, ..FractionalPercent::default() }),
            response_body: error_text(400).to_owned(),
            error_type: Some(fault_abort::ErrorType::HttpStatus(400)),
        }),
        headers: vec![matcher],
        ..HttpFault::default()
    };
    http_filter("envoy.filters.http.fault", any(&fault))
}

fn http_filter(name: &str, config: envoy_types::pb::google::protobuf::Any) -> HttpFilter {
    let config_type = Some(http_filter::ConfigType::TypedConfig(config));
    HttpFilter { name: name.to_owned(), config_type, ..HttpFilter::default() }
}

/// The headers of [`model::route::ForwardedHeaders`]. Early mutations apply before anything else reads the headers, and
/// see the peer, or the source that its PROXY protocol header names, as the remote address.
pub(super) fn set_forwarded(
    manager: &mut HttpConnectionManager,
    settings: &EdgeSettings,
    trust: ClientTrust,
) {
    const PEER: &str = "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%";
    const HOST: &str = "%REQ(:AUTHORITY)%";
    let element =
        |scheme: Scheme| format!("for=\"%DOWNSTREAM_REMOTE_ADDRESS%\";host=\"{HOST}\";proto={scheme}");
    let mut mutations = Vec::new();
    match trust {
        ClientTrust::Sidecar => {
            manager.use_remote_address = no();
            manager.skip_xff_append = true;
            return;
        }
        ClientTrust::Untrusted(scheme) => {
            use HeaderAppendAction::OverwriteIfExistsOrAdd as Set;
            mutations.push(Action::RemoveOnMatch(RemoveOnMatch {
                key_matcher: Some(StringMatcher {
                    match_pattern: Some(MatchPattern::Prefix(X_FORWARDED_PREFIX.to_owned())),
                    ..StringMatcher::default()
                }),
            }));
            mutations.extend(FORWARDED_HEADERS.iter().map(|name| Action::Remove((*name).to_owned())));
            mutations.push(put("x-forwarded-for", PEER, Set));
            mutations.push(put("x-forwarded-proto", scheme.as_str(), Set));
            mutations.push(put("x-forwarded-host", HOST, Set));
            mutations.push(put("x-real-ip", PEER, Set));
            mutations.push(put("forwarded", &element(scheme), Set));
            manager.use_remote_address = yes();
            manager.skip_xff_append = true;
        }
        ClientTrust::TrustedProxy(scheme) => {
            mutations.push(put("x-forwarded-proto", scheme.as_str(), HeaderAppendAction::AddIfAbsent));
            mutations.push(put("x-forwarded-host", HOST, HeaderAppendAction::AddIfAbsent));
            mutations.push(put("forwarded", &element(scheme), HeaderAppendAction::AppendIfExistsOrAdd));
            let cidrs = XffTrustedCidrs { cidrs: trusted_ranges(settings) };
            let detection =
                XffConfig { xff_trusted_cidrs: Some(cidrs), skip_xff_append: no(), ..XffConfig::default() };
            manager.original_ip_detection_extensions =
                vec![extension("envoy.http.original_ip_detection.xff", any(&detection))];
            // Here the remote address is the client that the trusted proxies name.
            let real = put("x-real-ip", PEER, HeaderAppendAction::OverwriteIfExistsOrAdd);
            let filter = HeaderMutationFilter {
                mutations: Some(Mutations {
                    request_mutations: vec![HeaderMutation { action: Some(real) }],
                    ..Mutations::default()
                }),
                ..HeaderMutationFilter::default()
            };
            manager.http_filters.insert(0, http_filter("envoy.filters.http.header_mutation", any(&filter)));
        }
    }
    // No client is internal: Envoy obeys control headers (`x-envoy-*`) of internal ones.
    manager.internal_address_config = Some(InternalAddressConfig::default());
    let mutations = mutations.into_iter().map(|action| HeaderMutation { action: Some(action) }).collect();
    manager.early_header_mutation_extensions = vec![extension(
        "envoy.http.early_header_mutation.header_mutation",
        any(&EarlyMutation { mutations }),
    )];
}

fn put(name: &str, value: &str, action: HeaderAppendAction) -> Action {
    Action::Append(HeaderValueOption {
        header: Some(HeaderValue { key: name.to_owned(), value: value.to_owned(), ..HeaderValue::default() }),
        append_action: action.into(),
        ..HeaderValueOption::default()
    })
}

fn extension(name: &str, config: envoy_types::pb::google::protobuf::Any) -> TypedExtensionConfig {
    TypedExtensionConfig { name: name.to_owned(), typed_config: Some(config) }
}

/// Every connection has to begin with a PROXY protocol header.
pub(super) fn proxy_protocol_filter() -> ListenerFilter {
    listener_filter("envoy.filters.listener.proxy_protocol", any(&ProxyProtocol::default()))
}

/// The networks of trusted proxies. Envoy takes an empty list for all, so none is an address that no client has.
pub(super) fn trusted_ranges(settings: &EdgeSettings) -> Vec<CidrRange> {
    let range = |address: String, length: u8| CidrRange {
        address_prefix: address,
        prefix_len: number(length.into()),
    };
    let networks = settings.trusted_proxies.networks();
    if networks.is_empty() {
        return vec![range("255.255.255.255".to_owned(), 32)];
    }
    networks.iter().map(|network| range(network.network().to_string(), network.prefix_len())).collect()
}
