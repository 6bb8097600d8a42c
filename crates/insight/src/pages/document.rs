//! A page as a whole document: on the listener with links and script, or as a file of its own.

use std::fmt::Write;

use crate::status::StatusReport;
use output::html::{STYLE, escaped};

use crate::pages::assets;
use crate::pages::overview::{head_figures, limits, zone_section};
use crate::pages::services::plain_table;
use crate::pages::{NavEntry, Page};

/// Headers of every response of the dashboard.
pub const SECURITY_HEADERS: &[(&str, &str)] = &[
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
         base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
];

/// How often a page reloads without JavaScript, and one without a report always.
const RELOAD: &str = "<noscript><meta http-equiv=\"refresh\" content=\"30\"></noscript>";
const RELOAD_SOON: &str = "<meta http-equiv=\"refresh\" content=\"5\">";

const NAV: &[(NavEntry, &str, &str)] = &[
    (NavEntry::Overview, "/", "Overview"),
    (NavEntry::Services, "/services", "Services"),
    (NavEntry::Nodes, "/nodes", "Nodes"),
    (NavEntry::Routes, "/routes", "Routes"),
    (NavEntry::WhatIf, "/what-if", "What-if"),
];

fn head(title: &str, reload: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{} \u{b7} Zoneward</title><link rel=\"icon\" href=\"data:,\">{reload}\
         <link rel=\"stylesheet\" href=\"{}\"><script defer src=\"{}\"></script></head>\n",
        escaped(title),
        assets::STYLE_CSS.path(),
        assets::APP_JS.path()
    )
}

fn nav(current: Option<NavEntry>) -> String {
    let mut html = "<a class=\"skip\" href=\"#main\">Skip to content</a>\n<header><strong>Zoneward</strong><nav aria-label=\"Pages\">".to_owned();
    for (entry, path, name) in NAV {
        let here = if current == Some(*entry) { " aria-current=\"page\"" } else { "" };
        let _ = write!(html, "<a href=\"{path}\"{here}>{name}</a>");
    }
    html + "</nav><span id=\"live\" role=\"status\"></span></header>\n"
}

/// The page for a browser.
pub fn document(page: &Page) -> String {
    let mut html = head(&page.title, RELOAD);
    let _ = writeln!(
        html,
        "<body data-plot=\"{}\" data-plot-css=\"{}\">{}<main id=\"main\"><h1>{}</h1>",
        assets::UPLOT_JS.path(),
        assets::UPLOT_CSS.path(),
        nav(Some(page.nav)),
        escaped(&page.title)
    );
    for fragment in &page.fragments {
        let _ = writeln!(
            html,
            "<section id=\"{}\" data-v=\"{:016x}\">{}</section>",
            fragment.id,
            fragment.version(),
            fragment.html
        );
    }
    html + "</main></body></html>\n"
}

/// A page that says what is wrong, or what was done.
pub fn error_document(title: &str, text: &str, back: &str) -> String {
    message(&head(title, ""), title, text, back)
}

/// A page that is tried again soon.
pub fn unavailable_document(text: &str, back: &str) -> String {
    let title = "No report yet";
    message(&head(title, RELOAD_SOON), title, text, back)
}

fn message(head: &str, title: &str, text: &str, back: &str) -> String {
    format!(
        "{head}<body>{}<main id=\"main\"><h1>{}</h1>\n<p>{}</p>\n<p><a href=\"{}\">Back</a></p></main></body></html>\n",
        nav(None),
        escaped(title),
        escaped(text),
        escaped(back)
    )
}

/// The report as one file without links and scripts, for `zoneward status -o html`.
pub fn status_file(report: &StatusReport) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><link rel=\"icon\" href=\"data:,\">\
         <title>Zoneward status</title>\n<style>\n{STYLE}{}</style></head>\n<body><main><h1>Zoneward status</h1>\n\
         {}{}<h2>Services</h2>\n{}{}</main></body></html>\n",
        assets::OWN_STYLE,
        head_figures(report, false),
        zone_section(&report.summary),
        plain_table(&report.services, &report.summary.currency),
        limits(&report.limits)
    )
}
