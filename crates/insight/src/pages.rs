//! The dashboard's pages as pure functions: a report goes in, HTML and SVG come out.
//!
//! ```text
//! path, query -> PageTarget --\
//! StatusReport, ServiceView ---> Page: fragments with ids -> document (the whole page, without JavaScript as well)
//!                                                       \-> events of the fragments that changed (app.js swaps them)
//! ```
//!
//! Pages have no inline script and no inline style, so that the Content-Security-Policy can forbid both.

pub mod assets;
mod document;
mod figures;
pub mod guard;
mod history;
mod nodes;
mod overview;
mod query;
mod routes;
mod service;
mod services;
mod table;
mod target;
mod units;
mod what_if;

pub use document::{SECURITY_HEADERS, document, error_document, status_file, unavailable_document};
pub use nodes::{NodeSort, NodesQuery, nodes_page};
pub use overview::overview_page;
pub use query::{QueryPairs, encoded};
pub use routes::{RouteBackend, RouteRow, routes_page};
pub use service::{ServiceExtras, service_page};
pub use services::{ServiceSort, ServicesQuery, services_page};
pub use target::PageTarget;
pub use what_if::{WhatIfForm, what_if_page};

/// The pages in the navigation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NavEntry {
    Overview,
    Services,
    Nodes,
    Routes,
    WhatIf,
}

/// A part of a page that is replaced when it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageFragment {
    pub id: &'static str,
    pub html: String,
}

impl PageFragment {
    fn new(id: &'static str, html: impl Into<String>) -> Self {
        Self { id, html: html.into() }
    }

    /// Differs if the content differs.
    pub fn version(&self) -> u64 {
        digest(self.html.as_bytes())
    }

    /// The server-sent event that replaces it.
    pub fn event(&self) -> String {
        let version = format!("{:016x}", self.version());
        let data = serde_json::json!({"id": self.id, "v": version, "html": self.html});
        format!("event: fragment\ndata: {data}\n\n")
    }
}

/// A page in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    pub title: String,
    pub nav: NavEntry,
    pub fragments: Vec<PageFragment>,
}

/// FNV-1a: equal on every machine.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests;
