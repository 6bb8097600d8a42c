//! Changes a rule set as iptables-restore changes a kernel.

use model::Family;

use super::parse::{self, words};
use super::rule::{IptablesMatch, IptablesTarget};
use super::{
    BUILT_IN, ChainPolicy, IptablesChain, IptablesError, IptablesRule, IptablesRuleset, IptablesTable,
    RuleCounters,
};

/// The kernel's limit, without the final zero.
const MAX_CHAIN_NAME: usize = 28;

/// What happens to the chains of a table that a text does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushMode {
    /// They are deleted: without `--noflush`.
    Flush,
    /// They stay: `--noflush`.
    Keep,
}

/// Whether unknown matches and targets, and jumps to chains that come later, are allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strictness {
    Save,
    Restore,
}

/// The table that a text currently changes.
struct Transaction {
    name: String,
    table: IptablesTable,
    started: usize,
}

pub(super) fn load(ruleset: &mut IptablesRuleset, text: &str) -> Result<(), IptablesError> {
    run(ruleset, text, FlushMode::Flush, Strictness::Save)
}

pub(super) fn apply(ruleset: &mut IptablesRuleset, text: &str, mode: FlushMode) -> Result<(), IptablesError> {
    run(ruleset, text, mode, Strictness::Restore)
}

fn run(
    ruleset: &mut IptablesRuleset,
    text: &str,
    mode: FlushMode,
    strictness: Strictness,
) -> Result<(), IptablesError> {
    let mut open: Option<Transaction> = None;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('*') {
            if let Some(open) = open {
                return Err(uncommitted(&open).at(number));
            }
            open = Some(begin(ruleset, name.trim(), mode, number).map_err(|error| error.at(number))?);
            continue;
        }
        let Some(transaction) = &mut open else {
            return Err(IptablesError::new(format!("{line:?} is outside of a table")).at(number));
        };
        if line == "COMMIT" {
            let Transaction { name, table, .. } = open.take().expect("a table is open");
            if strictness == Strictness::Save {
                check_jumps(&name, &table).map_err(|error| error.at(number))?;
            }
            ruleset.tables.insert(name, table);
            continue;
        }
        change(ruleset.family, &mut transaction.table, line, strictness).map_err(|error| error.at(number))?;
    }
    match open {
        Some(open) => Err(uncommitted(&open).at(open.started)),
        None => Ok(()),
    }
}

fn uncommitted(open: &Transaction) -> IptablesError {
    IptablesError::new(format!("table {:?} has no COMMIT", open.name))
}

fn begin(
    ruleset: &IptablesRuleset,
    name: &str,
    mode: FlushMode,
    started: usize,
) -> Result<Transaction, IptablesError> {
    let empty =
        IptablesTable::built_in(name).ok_or_else(|| IptablesError::new(format!("unknown table {name:?}")))?;
    let table = match mode {
        FlushMode::Keep => ruleset.tables.get(name).cloned().unwrap_or(empty),
        FlushMode::Flush => empty,
    };
    Ok(Transaction { name: name.to_string(), table, started })
}

/// A saved table names all its chains before its rules, so that a missing one is only an error at its end.
fn check_jumps(name: &str, table: &IptablesTable) -> Result<(), IptablesError> {
    for (from, chain) in &table.chains {
        let missing =
            chain.rules.iter().filter_map(IptablesRule::chain).find(|to| !table.chains.contains_key(*to));
        if let Some(to) = missing {
            return Err(IptablesError::new(format!(
                "chain {from} of table {name} jumps to {to:?}, which is neither a chain nor a known target"
            )));
        }
    }
    Ok(())
}

fn change(
    family: Family,
    table: &mut IptablesTable,
    line: &str,
    strictness: Strictness,
) -> Result<(), IptablesError> {
    if let Some(declaration) = line.strip_prefix(':') {
        return declare(table, declaration);
    }
    let words = words(line)?;
    let (counters, words) = match words.split_first() {
        Some((first, rest)) if first.starts_with('[') => (Some(counters(first)?), rest),
        _ => (None, words.as_slice()),
    };
    let [command, rest @ ..] = words else { return Err(IptablesError::new("a line with counters only")) };
    let Some((chain_name, rest)) = rest.split_first() else {
        return Err(IptablesError::new(format!("command {command:?} lacks a chain")));
    };
    let parse_rule = |table: &IptablesTable, words: &[String]| {
        let mut rule = parse::rule(family, words)?;
        if let Some(counters) = counters {
            rule.counters = counters;
        }
        if strictness == Strictness::Restore {
            check_rule(table, &rule)?;
        }
        Ok::<_, IptablesError>(rule)
    };
    match command.as_str() {
        "-A" | "--append" => {
            let rule = parse_rule(table, rest)?;
            chain_mut(table, chain_name)?.rules.push(rule);
        }
        "-I" | "--insert" => {
            let (position, rest) = position(rest);
            let rule = parse_rule(table, rest)?;
            let rules = &mut chain_mut(table, chain_name)?.rules;
            let at = position.unwrap_or(1).checked_sub(1).filter(|at| *at <= rules.len());
            rules.insert(at.ok_or_else(|| IptablesError::new("index of insertion too big"))?, rule);
        }
        "-D" | "--delete" => {
            let (position, rest) = position(rest);
            let wanted = if position.is_none() { Some(parse_rule(table, rest)?) } else { None };
            let rules = &mut chain_mut(table, chain_name)?.rules;
            let found = match &wanted {
                Some(wanted) => rules.iter().position(|rule| is_same(rule, wanted)),
                None => position.and_then(|n| n.checked_sub(1)).filter(|at| *at < rules.len()),
            };
            let at = found.ok_or_else(|| {
                IptablesError::new(format!("chain {chain_name} has no such rule to delete"))
            })?;
            rules.remove(at);
        }
        "-F" | "--flush" => chain_mut(table, chain_name)?.rules.clear(),
        "-N" | "--new-chain" => {
            if table.chains.contains_key(chain_name) {
                return Err(IptablesError::new(format!("chain {chain_name} already exists")));
            }
            check_name(chain_name)?;
            table.chains.insert(chain_name.clone(), IptablesChain::default());
        }
        "-X" | "--delete-chain" => delete_chain(table, chain_name)?,
        "-P" | "--policy" => {
            let policy = rest.first().map(String::as_str).unwrap_or_default();
            let chain = chain_mut(table, chain_name)?;
            chain.policy = parse_policy(policy, chain.policy)?;
        }
        _ => return Err(IptablesError::new(format!("unknown command {command:?}"))),
    }
    Ok(())
}

/// `:CHAIN POLICY [packets:bytes]`: creates or empties a user chain; sets the policy of a built-in one.
fn declare(table: &mut IptablesTable, declaration: &str) -> Result<(), IptablesError> {
    let mut fields = declaration.split_whitespace();
    let name = fields.next().ok_or_else(|| IptablesError::new("\":\" without a chain"))?;
    let policy = fields.next().ok_or_else(|| IptablesError::new(format!("chain {name} lacks its policy")))?;
    let counted = fields.next().map(counters).transpose()?.unwrap_or_default();
    match table.chains.get_mut(name) {
        Some(chain) if chain.policy.is_some() => {
            chain.policy = parse_policy(policy, chain.policy)?;
            chain.counters = counted;
        }
        _ => {
            check_name(name)?;
            if policy != "-" {
                return Err(IptablesError::new(format!("chain {name} cannot have a policy")));
            }
            table.chains.insert(name.to_string(), IptablesChain::default());
        }
    }
    Ok(())
}

fn parse_policy(text: &str, current: Option<ChainPolicy>) -> Result<Option<ChainPolicy>, IptablesError> {
    match (text, current) {
        (_, None) => Err(IptablesError::new("a user chain cannot have a policy")),
        ("ACCEPT", _) => Ok(Some(ChainPolicy::Accept)),
        ("DROP", _) => Ok(Some(ChainPolicy::Drop)),
        ("-", current) => Ok(current),
        _ => Err(IptablesError::new(format!("unknown policy {text:?}"))),
    }
}

fn check_name(name: &str) -> Result<(), IptablesError> {
    if name.len() > MAX_CHAIN_NAME {
        return Err(IptablesError::new(format!(
            "chain name {name:?} is longer than {MAX_CHAIN_NAME} characters"
        )));
    }
    if parse::is_target(name) || name.starts_with('-') || name.starts_with('!') {
        return Err(IptablesError::new(format!("{name:?} cannot be the name of a chain")));
    }
    Ok(())
}

fn chain_mut<'t>(table: &'t mut IptablesTable, name: &str) -> Result<&'t mut IptablesChain, IptablesError> {
    table.chains.get_mut(name).ok_or_else(|| IptablesError::new(format!("unknown chain {name:?}")))
}

fn delete_chain(table: &mut IptablesTable, name: &str) -> Result<(), IptablesError> {
    let chain = chain_mut(table, name)?;
    if chain.policy.is_some() {
        return Err(IptablesError::new(format!("chain {name} is built in")));
    }
    if !chain.rules.is_empty() {
        return Err(IptablesError::new(format!("chain {name} is not empty")));
    }
    let refers = |chain: &IptablesChain| chain.rules.iter().any(|rule| rule.chain() == Some(name));
    if let Some((from, _)) = table.chains.iter().find(|(_, chain)| refers(chain)) {
        return Err(IptablesError::new(format!("chain {name} is still used by chain {from}")));
    }
    table.chains.remove(name);
    Ok(())
}

/// A rule that a kernel would take: no unknown match or target, and a chain that exists.
fn check_rule(table: &IptablesTable, rule: &IptablesRule) -> Result<(), IptablesError> {
    for found in &rule.matches {
        match found {
            IptablesMatch::Other { module, options } => {
                return Err(IptablesError::new(format!(
                    "unknown match {module:?} or option of it: {options:?}"
                )));
            }
            IptablesMatch::Ports { protocol, .. } => {
                let fits = rule.protocol.as_ref().is_some_and(|of| !of.negated && of.value == *protocol);
                if !fits {
                    return Err(IptablesError::new("a port match needs its protocol: -p"));
                }
            }
            _ => {}
        }
    }
    if let Some(IptablesTarget::Other { name, options }) = &rule.target {
        return Err(IptablesError::new(format!("unknown target {name:?} or option of it: {options:?}")));
    }
    let built_in = |name: &str| BUILT_IN.iter().any(|(_, chains)| chains.contains(&name));
    match rule.chain() {
        Some(to) if built_in(to) || !table.chains.contains_key(to) => {
            Err(IptablesError::new(format!("unknown chain or target {to:?}")))
        }
        _ => Ok(()),
    }
}

/// A leading rule number.
fn position(words: &[String]) -> (Option<usize>, &[String]) {
    match words.split_first().map(|(first, rest)| (first.parse(), rest)) {
        Some((Ok(number), rest)) => (Some(number), rest),
        _ => (None, words),
    }
}

fn is_same(left: &IptablesRule, right: &IptablesRule) -> bool {
    let bare = |rule: &IptablesRule| IptablesRule { counters: RuleCounters::default(), ..rule.clone() };
    bare(left) == bare(right)
}

/// `[packets:bytes]`.
fn counters(text: &str) -> Result<RuleCounters, IptablesError> {
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let parsed = inner.and_then(|inner| inner.split_once(':')).and_then(|(packets, bytes)| {
        Some(RuleCounters { packets: packets.parse().ok()?, bytes: bytes.parse().ok()? })
    });
    parsed.ok_or_else(|| IptablesError::new(format!("{text:?} are no counters")))
}
