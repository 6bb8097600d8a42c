//! The programs of iptables over rules in memory, which are changed and printed as the real ones do it.

use std::collections::BTreeMap;

use model::Family;

use super::commands::{IptablesCommandError, IptablesCommands, IptablesFlavour};
use super::names::IptablesTableName;
use super::ruleset::{FlushMode, IptablesRuleset};

/// Both families in memory.
#[derive(Clone, Debug)]
pub struct FakeIptables {
    flavour: IptablesFlavour,
    rulesets: BTreeMap<Family, IptablesRuleset>,
    /// Inputs that were restored.
    pub inputs: Vec<(Family, String)>,
}

impl FakeIptables {
    pub fn new(flavour: IptablesFlavour) -> Self {
        let rulesets = [Family::V4, Family::V6].map(|family| (family, IptablesRuleset::new(family)));
        Self { flavour, rulesets: rulesets.into(), inputs: Vec::new() }
    }

    /// With rules that are there already, of both families.
    pub fn with_rules(rulesets: [IptablesRuleset; 2]) -> Self {
        let rulesets = rulesets.map(|ruleset| (ruleset.family, ruleset)).into();
        Self { rulesets, ..Self::new(IptablesFlavour::Nft) }
    }

    pub fn ruleset(&self, family: Family) -> &IptablesRuleset {
        &self.rulesets[&family]
    }
}

impl IptablesCommands for FakeIptables {
    fn flavour(&self) -> IptablesFlavour {
        self.flavour
    }

    fn families(&self) -> &[Family] {
        &[Family::V4, Family::V6]
    }

    fn save(&mut self, family: Family, table: IptablesTableName) -> Result<String, IptablesCommandError> {
        let mut only = IptablesRuleset::new(family);
        let tables = &self.rulesets[&family].tables;
        only.tables = tables
            .iter()
            .filter(|(name, _)| *name == table.as_str())
            .map(|(name, table)| (name.clone(), table.clone()))
            .collect();
        Ok(only.to_save(false))
    }

    fn restore(&mut self, family: Family, input: &str) -> Result<(), IptablesCommandError> {
        self.inputs.push((family, input.to_owned()));
        let ruleset = self.rulesets.entry(family).or_insert_with(|| IptablesRuleset::new(family));
        let restored = ruleset.restore(input, FlushMode::Keep);
        restored.map_err(|error| IptablesCommandError::Refused(error.to_string()))
    }

    fn has_chain(
        &mut self,
        family: Family,
        table: IptablesTableName,
        chain: &str,
    ) -> Result<bool, IptablesCommandError> {
        Ok(self.rulesets[&family].chain(table.as_str(), chain).is_some())
    }
}

/// A fake that a test can look into while a backend uses it.
impl<C: IptablesCommands> IptablesCommands for std::sync::Arc<std::sync::Mutex<C>> {
    fn flavour(&self) -> IptablesFlavour {
        self.lock().unwrap_or_else(std::sync::PoisonError::into_inner).flavour()
    }

    fn families(&self) -> &[Family] {
        &[Family::V4, Family::V6]
    }

    fn save(&mut self, family: Family, table: IptablesTableName) -> Result<String, IptablesCommandError> {
        self.lock().unwrap_or_else(std::sync::PoisonError::into_inner).save(family, table)
    }

    fn restore(&mut self, family: Family, input: &str) -> Result<(), IptablesCommandError> {
        self.lock().unwrap_or_else(std::sync::PoisonError::into_inner).restore(family, input)
    }

    fn has_chain(
        &mut self,
        family: Family,
        table: IptablesTableName,
        chain: &str,
    ) -> Result<bool, IptablesCommandError> {
        self.lock().unwrap_or_else(std::sync::PoisonError::into_inner).has_chain(family, table, chain)
    }
}
