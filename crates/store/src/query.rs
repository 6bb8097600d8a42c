//! What follows the `?` of a request: options of lists, watches, writes and deletes, with the meaning that
//! resourceVersion has in each.
//!
//! ```text
//! list   no version            the newest
//!        0, or NotOlderThan N  anything from N on; the newest serves
//!        Exact N               exactly N, or 410 if it is no longer kept
//! watch  no version            the newest objects as ADDED, then changes
//!        0                     the same
//!        N                     changes after N, or 410 if they are no longer kept
//! ```

use std::collections::BTreeMap;

use crate::kinds::Kind;
use crate::selector::{Fields, Labels};
use crate::status::Failure;

/// The pairs of a query, decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(BTreeMap<String, String>);

/// Options of a list or watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// Which labels to have.
    pub labels: Labels,
    /// Which fields to have.
    pub fields: Fields,
    /// How many objects at most; 0: all.
    pub limit: usize,
    /// Where an earlier answer stopped.
    pub continue_token: Option<String>,
    /// Which version to answer with.
    pub version: ListVersion,
    /// Whether changes are wanted.
    pub watch: bool,
    /// From where on changes are wanted.
    pub watch_from: Option<u64>,
    /// Whether bookmarks are wanted.
    pub bookmarks: bool,
    /// Whether the watch begins with all objects and a bookmark after them.
    pub initial_events: bool,
    /// After how many seconds a watch ends.
    pub timeout_seconds: Option<u64>,
}

/// Which version of the store a list shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListVersion {
    /// The newest.
    #[default]
    Newest,
    /// Any from this one on.
    NotOlderThan(u64),
    /// This very one.
    Exact(u64),
}

/// What to do about fields that the schema does not know, and about fields that stand twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
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
pub struct WriteOptions {
    /// Do everything but store it.
    pub dry_run: bool,
    /// What to do about unknown fields.
    pub field_validation: FieldValidation,
}

impl Query {
    /// Reads `a=b&c=d`; of a key that stands twice the first counts.
    pub fn parse(text: &str) -> Self {
        let mut pairs = BTreeMap::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            pairs.entry(decode(key)).or_insert_with(|| decode(value));
        }
        Self(pairs)
    }

    /// The value of a key, unless it is empty.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Whether changes are asked for.
    pub fn is_watch(&self) -> Result<bool, Failure> {
        self.flag("watch")
    }

    fn flag(&self, key: &str) -> Result<bool, Failure> {
        match self.0.get(key).map(String::as_str) {
            None => Ok(false),
            Some("" | "1" | "t" | "T" | "true" | "True" | "TRUE") => Ok(true),
            Some("0" | "f" | "F" | "false" | "False" | "FALSE") => Ok(false),
            Some(other) => Err(Failure::bad_request(format!("{key}={other}: write true or false"))),
        }
    }

    fn number(&self, key: &str) -> Result<Option<u64>, Failure> {
        let read = |value: &str| {
            let wrong =
                || Failure::bad_request(format!("{key}={value}: write a whole number that is not negative"));
            value.parse().map_err(|_| wrong())
        };
        self.value(key).map(read).transpose()
    }

    fn resource_version(&self) -> Result<Option<u64>, Failure> {
        let read = |value: &str| {
            let message =
                format!("Invalid value: {value:?}: resourceVersion: it is a number that this server gave");
            value.parse().map_err(|_| Failure::bad_request(message))
        };
        self.value("resourceVersion").map(read).transpose()
    }

    /// The options of a list or watch of a kind.
    pub fn list_options(&self, kind: &Kind) -> Result<ListOptions, Failure> {
        let labels = self.value("labelSelector").map_or(Ok(Labels::default()), Labels::parse);
        let fields =
            self.value("fieldSelector").map_or(Ok(Fields::default()), |text| Fields::parse(text, kind));
        let options = ListOptions {
            labels: labels.map_err(Failure::bad_request)?,
            fields: fields.map_err(Failure::bad_request)?,
            limit: usize::try_from(self.number("limit")?.unwrap_or(0)).unwrap_or(usize::MAX),
            continue_token: self.value("continue").map(str::to_owned),
            version: self.list_version()?,
            watch: self.flag("watch")?,
            watch_from: self.resource_version()?,
            bookmarks: self.flag("allowWatchBookmarks")?,
            initial_events: self.flag("sendInitialEvents")?,
            timeout_seconds: self.number("timeoutSeconds")?,
        };
        self.check_together(&options)?;
        Ok(options)
    }

    fn list_version(&self) -> Result<ListVersion, Failure> {
        let version = self.resource_version()?;
        match (self.value("resourceVersionMatch"), version) {
            (None, None) => Ok(ListVersion::Newest),
            // With a limit a version without a word has always meant that very one, 0 apart.
            (None, Some(version)) if version > 0 && self.value("limit").is_some_and(|limit| limit != "0") => {
                Ok(ListVersion::Exact(version))
            }
            (None | Some("NotOlderThan"), Some(version)) => Ok(ListVersion::NotOlderThan(version)),
            (Some("Exact"), Some(version)) if version > 0 => Ok(ListVersion::Exact(version)),
            (Some("NotOlderThan"), None) if self.value("sendInitialEvents").is_some() => {
                Ok(ListVersion::Newest)
            }
            (Some("Exact" | "NotOlderThan"), _) => Err(Failure::bad_request(
                "resourceVersionMatch is forbidden unless resourceVersion is given, and Exact unless it is above 0",
            )),
            (Some(other), _) => Err(Failure::bad_request(format!(
                "resourceVersionMatch: Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\""
            ))),
        }
    }

    fn check_together(&self, options: &ListOptions) -> Result<(), Failure> {
        let given = self.value("sendInitialEvents").is_some();
        if given && !options.watch {
            return Err(Failure::bad_request(
                "sendInitialEvents is forbidden for list: it goes with watch=true",
            ));
        }
        if given && self.value("resourceVersionMatch") != Some("NotOlderThan") {
            return Err(Failure::bad_request("sendInitialEvents requires resourceVersionMatch=NotOlderThan"));
        }
        if options.continue_token.is_some() && self.value("resourceVersion").is_some_and(|v| v != "0") {
            return Err(Failure::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        Ok(())
    }

    /// The options of a write.
    pub fn write_options(&self) -> Result<WriteOptions, Failure> {
        Ok(WriteOptions {
            dry_run: dry_run(self.value("dryRun"))?,
            field_validation: self.field_validation()?,
        })
    }

    fn field_validation(&self) -> Result<FieldValidation, Failure> {
        match self.value("fieldValidation") {
            None | Some("Warn") => Ok(FieldValidation::Warn),
            Some("Ignore") => Ok(FieldValidation::Ignore),
            Some("Strict") => Ok(FieldValidation::Strict),
            Some(other) => Err(Failure::bad_request(format!(
                "fieldValidation: Unsupported value: {other:?}: supported values: \"Ignore\", \"Strict\", \"Warn\""
            ))),
        }
    }
}

/// Whether `dryRun` asks for a rehearsal.
pub fn dry_run(value: Option<&str>) -> Result<bool, Failure> {
    match value {
        None => Ok(false),
        Some("All") => Ok(true),
        Some(other) => {
            let message = format!("dryRun: Unsupported value: {other:?}: supported values: \"All\"");
            Err(Failure::bad_request(message))
        }
    }
}

/// Percent-decoding; what is not well encoded stays as it is.
pub fn decode(text: &str) -> String {
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

    fn options(query: &str) -> Result<ListOptions, Failure> {
        Query::parse(query).list_options(kinds::find("", "v1", "pods").unwrap())
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
        for query in [
            "resourceVersion=x",
            "resourceVersionMatch=Exact",
            "resourceVersion=0&resourceVersionMatch=Exact",
            "resourceVersion=1&resourceVersionMatch=Near",
            "sendInitialEvents=true",
            "watch=true&sendInitialEvents=true",
            "watch=maybe",
            "limit=-1",
            "labelSelector=a+in+(b",
            "fieldSelector=spec.color=red",
            "continue=abc&resourceVersion=5",
        ] {
            assert_eq!(options(query).unwrap_err().code, 400, "{query}");
        }
    }

    #[test]
    fn pairs_are_decoded() {
        let query = Query::parse("labelSelector=app%20in+%28a%2Cb%29&watch=1&x=%zz%");
        assert_eq!(query.value("labelSelector"), Some("app in (a,b)"));
        assert_eq!(query.value("x"), Some("%zz%"));
    }
}
