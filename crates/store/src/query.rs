//! Query parameters: options of lists, watches, writes and deletes, and the meaning of resourceVersion in each.
//!
//! ```text
//! list   no version            the newest
//!        0, or NotOlderThan N  anything from N on; the newest is served
//!        Exact N               exactly N, or 410 if it is compacted
//! watch  no version            the newest objects as ADDED, then events
//!        0                     the same
//!        N                     events after N, or 410 if they are compacted
//! ```

use std::collections::BTreeMap;

use crate::kinds::ResourceKind;
use crate::selector::{FieldSelector, LabelSelector};
use apimachinery::validate::FieldErrorType;

use crate::status::{Cause, StatusError};

/// The decoded parameters of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueryParams(BTreeMap<String, String>);

/// Options of a list or watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListOptions {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
    /// 0 for all.
    pub limit: usize,
    pub continue_token: Option<String>,
    pub version: ListVersion,
    pub watch: bool,
    /// The resourceVersion of a watch.
    pub watch_from: Option<u64>,
    /// `allowWatchBookmarks`.
    pub bookmarks: bool,
    /// `sendInitialEvents`: the watch starts with all objects and a bookmark.
    pub initial_events: bool,
    pub timeout_seconds: Option<u64>,
}

/// The resourceVersion of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ListVersion {
    #[default]
    Newest,
    NotOlderThan(u64),
    Exact(u64),
}

/// How unknown and duplicate fields are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    /// Drop them.
    Ignore,
    /// Drop them and warn.
    #[default]
    Warn,
    /// Refuse the object.
    Strict,
}

/// Options of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WriteOptions {
    pub dry_run: bool,
    pub field_validation: FieldValidation,
}

impl QueryParams {
    /// Parses `a=b&c=d`; the first of duplicate keys counts.
    pub(crate) fn parse(text: &str) -> Self {
        let mut pairs = BTreeMap::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            pairs.entry(decode(key)).or_insert_with(|| decode(value));
        }
        Self(pairs)
    }

    /// The value of a key, unless it is empty.
    pub(crate) fn value(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    pub(crate) fn is_watch(&self) -> bool {
        self.flag("watch")
    }

    pub(crate) fn flag(&self, key: &str) -> bool {
        match self.0.get(key).map(String::as_str) {
            None => false,
            // As in Kubernetes, everything but 0 and false is true.
            Some(word) => !matches!(word.to_ascii_lowercase().as_str(), "0" | "false"),
        }
    }

    /// An integer; a negative one is ignored.
    fn number(&self, key: &str) -> Result<Option<u64>, StatusError> {
        let read = |value: &str| {
            let wrong = || StatusError::bad_request(format!("{key}={value}: expected an integer"));
            value.parse::<i64>().map_err(|_| wrong())
        };
        let number = self.value(key).map(read).transpose()?;
        Ok(number.and_then(|number| u64::try_from(number).ok()))
    }

    fn resource_version(&self) -> Result<Option<u64>, StatusError> {
        let read = |value: &str| {
            let message = format!("Invalid value: {value:?}: resourceVersion: expected a number");
            value.parse().map_err(|_| StatusError::bad_request(message))
        };
        self.value("resourceVersion").map(read).transpose()
    }

    /// The options of a list or watch of a kind.
    pub(crate) fn list_options(&self, kind: &ResourceKind) -> Result<ListOptions, StatusError> {
        let labels = self.value("labelSelector").map_or(Ok(LabelSelector::default()), LabelSelector::parse);
        let fields = self
            .value("fieldSelector")
            .map_or(Ok(FieldSelector::default()), |text| FieldSelector::parse(text, kind));
        let limit = self.number("limit")?.unwrap_or(0);
        self.check_together()?;
        let options = ListOptions {
            labels: labels.map_err(StatusError::bad_request)?,
            fields: fields.map_err(StatusError::bad_request)?,
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
            continue_token: self.value("continue").map(str::to_owned),
            version: self.list_version(limit > 0)?,
            watch: self.flag("watch"),
            watch_from: self.resource_version()?,
            bookmarks: self.flag("allowWatchBookmarks"),
            initial_events: self.flag("sendInitialEvents"),
            timeout_seconds: self.number("timeoutSeconds")?,
        };
        if options.continue_token.is_some() && self.value("resourceVersion").is_some_and(|v| v != "0") {
            return Err(StatusError::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        Ok(options)
    }

    fn list_version(&self, limited: bool) -> Result<ListVersion, StatusError> {
        let version = self.resource_version()?;
        match (self.value("resourceVersionMatch"), version) {
            (None, None) => Ok(ListVersion::Newest),
            // With a limit, a version other than 0 means exactly that one.
            (None, Some(version)) if version > 0 && limited => Ok(ListVersion::Exact(version)),
            (Some("Exact"), Some(version)) => Ok(ListVersion::Exact(version)),
            (_, Some(version)) => Ok(ListVersion::NotOlderThan(version)),
            // With sendInitialEvents, no version means the newest.
            (Some(_), None) => Ok(ListVersion::Newest),
        }
    }

    /// Refuses combinations that kube-apiserver refuses.
    fn check_together(&self) -> Result<(), StatusError> {
        let wanted = self.value("resourceVersionMatch");
        let mut causes = match (self.flag("watch"), self.0.contains_key("sendInitialEvents")) {
            (true, events) => check_watch(wanted, events, self.value("continue").is_some()),
            (false, _) => self.check_list(wanted),
        };
        if !self.flag("watch") && self.0.contains_key("sendInitialEvents") {
            causes.push(Cause::new(FieldErrorType::Forbidden, "sendInitialEvents", "forbidden for list"));
        }
        if causes.is_empty() { Ok(()) } else { Err(StatusError::invalid_options("ListOptions", &causes)) }
    }

    fn check_list(&self, wanted: Option<&str>) -> Vec<Cause> {
        let mut causes = Vec::new();
        let Some(word) = wanted else { return causes };
        let version = self.value("resourceVersion");
        if version.is_none() {
            causes.push(forbidden_match("forbidden unless resourceVersion is provided"));
        }
        if self.value("continue").is_some() {
            causes.push(forbidden_match("forbidden when continue is provided"));
        }
        match word {
            "Exact" if version == Some("0") => {
                causes.push(forbidden_match("Exact is forbidden with resourceVersion 0"));
            }
            "Exact" | "NotOlderThan" => {}
            other => causes.push(unknown("resourceVersionMatch", other, &["Exact", "NotOlderThan"])),
        }
        causes
    }

    /// The options of a write; `called` is their name in errors, such as `CreateOptions`.
    pub(crate) fn write_options(&self, called: &str) -> Result<WriteOptions, StatusError> {
        let mut causes = Vec::new();
        if called == "PatchOptions" && self.value("force").is_some() {
            let reason = "may not be specified for non-apply patch";
            causes.push(Cause::new(FieldErrorType::Forbidden, "force", reason));
        }
        self.checked_options(called, causes)
    }

    /// The options of an apply, and whether it takes fields of other managers.
    pub(crate) fn apply_options(&self) -> Result<(WriteOptions, bool), StatusError> {
        let mut causes = Vec::new();
        if self.value("fieldManager").is_none_or(str::is_empty) {
            let reason = "is required for apply patch";
            causes.push(Cause::new(FieldErrorType::Required, "fieldManager", reason));
        }
        let force = matches!(self.value("force"), Some("true" | "True" | "TRUE" | "t" | "T" | "1"));
        Ok((self.checked_options("PatchOptions", causes)?, force))
    }

    fn checked_options(&self, called: &str, mut causes: Vec<Cause>) -> Result<WriteOptions, StatusError> {
        let (dry_run, unsupported) = dry_run(self.value("dryRun"));
        causes.extend(unsupported);
        let field_validation = match self.value("fieldValidation") {
            None | Some("Warn") => FieldValidation::Warn,
            Some("Ignore") => FieldValidation::Ignore,
            Some("Strict") => FieldValidation::Strict,
            Some(other) => {
                causes.push(unknown("fieldValidation", other, &["Ignore", "Strict", "Warn"]));
                FieldValidation::Warn
            }
        };
        if self.value("fieldManager").is_some_and(|name| name.len() > MAX_MANAGER) {
            let reason = format!("may not be more than {MAX_MANAGER} bytes");
            causes.push(Cause::new(FieldErrorType::TooLong, "fieldManager", reason));
        }
        if let Some(name) = self.value("fieldManager").filter(|name| name.chars().any(char::is_control)) {
            let reason = format!("Invalid value: {name:?}: should only contain printable characters");
            causes.push(Cause::invalid("fieldManager", reason));
        }
        if !causes.is_empty() {
            return Err(StatusError::invalid_options(called, &causes));
        }
        Ok(WriteOptions { dry_run, field_validation })
    }
}

fn forbidden_match(reason: &str) -> Cause {
    Cause::new(FieldErrorType::Forbidden, "resourceVersionMatch", reason)
}

fn check_watch(wanted: Option<&str>, initial_events: bool, continued: bool) -> Vec<Cause> {
    let mut causes = Vec::new();
    match wanted {
        None if initial_events => {
            causes.push(forbidden_match("NotOlderThan is required with sendInitialEvents"));
        }
        Some(_) if !initial_events => {
            causes.push(forbidden_match("forbidden for watch unless sendInitialEvents is provided"));
        }
        _ => {}
    }
    if continued {
        // kube-apiserver reports this for the same field.
        causes.push(forbidden_match("continue is forbidden for watch"));
    }
    if let Some(word) = wanted.filter(|word| *word != "NotOlderThan") {
        causes.push(unknown("resourceVersionMatch", word, &["NotOlderThan"]));
    }
    causes
}

/// Maximum length of a field manager.
pub(crate) const MAX_MANAGER: usize = 128;

/// The cause for an unsupported value of an option.
pub(crate) fn unknown(option: &str, word: &str, known: &[&str]) -> Cause {
    let known: Vec<String> = known.iter().map(|word| format!("{word:?}")).collect();
    let reason = format!("{word:?}: supported values: {}", known.join(", "));
    Cause::new(FieldErrorType::NotSupported, option, reason)
}

/// Parses `dryRun`; returns causes for unsupported values.
pub(crate) fn dry_run<'a>(words: impl IntoIterator<Item = &'a str>) -> (bool, Vec<Cause>) {
    let words: Vec<&str> = words.into_iter().collect();
    let unsupported = words.iter().find(|word| **word != "All");
    let causes = unsupported.map(|word| unknown("dryRun", word, &["All"]));
    (!words.is_empty(), causes.into_iter().collect())
}

/// Percent-decodes; malformed escapes are kept.
pub(crate) fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let hex = bytes.get(at + 1..at + 3).and_then(|pair| std::str::from_utf8(pair).ok());
        let value = hex.filter(|_| byte == b'%').and_then(|pair| u8::from_str_radix(pair, 16).ok());
        match value {
            Some(value) => {
                decoded.push(value);
                at += 3;
            }
            None => {
                decoded.push(if byte == b'+' { b' ' } else { byte });
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;

    fn options(query: &str) -> Result<ListOptions, StatusError> {
        QueryParams::parse(query).list_options(kinds::find("", "v1", "pods").unwrap())
    }

    #[test]
    fn a_version_means_what_it_means_in_kubernetes() {
        for (query, version) in [
            ("", ListVersion::Newest),
            ("resourceVersion=0", ListVersion::NotOlderThan(0)),
            ("resourceVersion=7", ListVersion::NotOlderThan(7)),
            ("resourceVersion=7&limit=5", ListVersion::Exact(7)),
            ("resourceVersion=7&resourceVersionMatch=Exact", ListVersion::Exact(7)),
            ("resourceVersion=7&resourceVersionMatch=NotOlderThan", ListVersion::NotOlderThan(7)),
        ] {
            assert_eq!(options(query).unwrap().version, version, "{query}");
        }
    }

    #[test]
    fn options_that_do_not_go_together_are_refused() {
        for (query, causes) in [
            ("resourceVersionMatch=Exact", "resourceVersionMatch Forbidden"),
            ("resourceVersion=0&resourceVersionMatch=Exact", "resourceVersionMatch Forbidden"),
            ("resourceVersion=1&resourceVersionMatch=Near", "resourceVersionMatch NotSupported"),
            (
                "resourceVersionMatch=NotOlderThan&continue=a",
                "resourceVersionMatch Forbidden, resourceVersionMatch Forbidden",
            ),
            ("sendInitialEvents=true", "sendInitialEvents Forbidden"),
            ("watch=true&sendInitialEvents=true", "resourceVersionMatch Forbidden"),
            (
                "watch=true&resourceVersion=1&resourceVersionMatch=Exact",
                "resourceVersionMatch Forbidden, resourceVersionMatch NotSupported",
            ),
        ] {
            let failure = options(query).unwrap_err();
            let found: Vec<String> = failure.details["causes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|cause| {
                    format!(
                        "{} {}",
                        cause["field"].as_str().unwrap(),
                        cause["reason"].as_str().unwrap().trim_start_matches("FieldValue")
                    )
                })
                .collect();
            assert_eq!((failure.code, found.join(", ").as_str()), (422, causes), "{query}");
            assert_eq!(failure.details["kind"], "ListOptions");
            assert_eq!(failure.details["group"], "meta.k8s.io");
        }
        assert_eq!(options("limit=-1&resourceVersion=7").unwrap().version, ListVersion::NotOlderThan(7));
        assert!(options("watch=maybe").unwrap().watch);
        for query in [
            "resourceVersion=x",
            "limit=many",
            "labelSelector=a+in+(b",
            "fieldSelector=spec.color=red",
            "continue=abc&resourceVersion=5",
        ] {
            assert_eq!(options(query).unwrap_err().code, 400, "{query}");
        }
    }

    #[test]
    fn pairs_are_decoded() {
        let query = QueryParams::parse("labelSelector=app%20in+%28a%2Cb%29&watch=1&x=%zz%");
        assert_eq!(query.value("labelSelector"), Some("app in (a,b)"));
        assert_eq!(query.value("x"), Some("%zz%"));
    }
}
