//! Parts of a card as people ask for them: `1/4 Ascend310P`, `25% H100`, `0.25 of H100`, `½ A30`, `8Gi`, `vir02`,
//! `nvidia.com/mig-1g.10gb`.
//!
//! ```text
//!   text ── parse_ask ──▶ Ask { model, part } ── resolve, with the models at hand ──▶ Answer, one a model
//! ```
//!
//! The fraction of a template is the one its file publishes: for MIG the memory slices it takes out of all of
//! them (`1g.10gb` of an H100 is 1/8, `3g.40gb` and `4g.40gb` are both 1/2, `7g.80gb` is 1), for Ascend the
//! AI cores or the memory.
//!
//! - A fraction is answered by every template of that fraction, the nearest in compute first. That is the
//!   order of publication, so a run, a plan and a class choose the same one.
//! - Without such a template, a shareable card answers with a share: that part of the memory, rounded down to
//!   1Mi so that equal parts fit beside each other, and that part of the compute in whole percent, rounded
//!   down.
//! - An amount of memory is answered by the templates of exactly that size, else by a share of it, rounded up
//!   to 1Mi, with best-effort compute. With a percentage beside it (`8Gi 25% H100`) it is a share of both.
//! - An amount of a device plugin's resource follows the rule of that plugin: `huawei.com/Ascend910B3-memory: 16384`
//!   is the smallest template with that nominal size or more, `nvidia.com/gpumem: 3000` a share of it, and
//!   `nvidia.com/gpumem-percentage: 25` a share of that part of each card's memory.
//! - A count behind the part (`nvidia.com/gpu: 2`) is the count of the request.
//! - Anything else is an error that lists the possible parts: a part that is not understood is never the
//!   whole card.

mod ascii;
mod ask;
mod nominal;
mod resource_name;
mod words;

use crate::catalogue::{CardModel, called};
use crate::id::{ModelId, TemplateName};
use crate::partition::{ShareSupport, Template};
use crate::quantity::Quantity;
use crate::units::{Bytes, Cores, Fraction};
use ascii::in_ascii;
pub use ask::{Ask, AskedPart, FractionChoice, ModelOffers};
use nominal::templates;
use resource_name::{PluginResource, ResourceName, chips_of_one_resource};
pub use resource_name::{mig_resource, vnpu_resource_size, vnpu_template};
use words::{KnownNames, OfferList, is_of_memory};

/// Longest text that is looked at; the longest sensible one has half of it.
const TEXT_BYTES_MAX: usize = 128;

/// What one model has for an ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FractionMatch {
    /// Which model.
    pub model: ModelId,
    /// What of it.
    pub choice: FractionChoice,
}

/// Why a text is no ask.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "part `{text}`: found {problem}, expected a part and a model such as `1/4 Ascend310P`, `25% H100`, `8Gi` or \
     `1g.10gb`; correct the part"
)]
pub struct AskError {
    /// The text, cut at 80 characters.
    pub text: String,
    /// What was found in it.
    pub problem: &'static str,
}

/// Why an ask has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolveError {
    /// Nothing goes by that name.
    #[error(
        "`{text}` is neither a part nor a card nor a template; {}; correct the name",
        KnownNames(text, known)
    )]
    Unknown {
        /// As requested.
        text: String,
        /// Models and templates at hand.
        known: Vec<String>,
    },
    /// No model at hand has such a part.
    #[error("no card has {asked}; there is {}; ask for one of these", OfferList(offers))]
    NoSuchPart {
        /// As requested.
        asked: String,
        /// What the models have instead.
        offers: Vec<ModelOffers>,
    },
}

/// Decimals of a percentage or of a decimal fraction at most.
const DECIMALS_MAX: usize = 4;

/// Reads an ask. The part may stand before or after the model, or behind it with a hyphen (`310p-1/4`), and a count
/// behind a colon or an equals sign.
///
/// # Errors
/// The text is empty or too long, or asks for nothing or for more than one card.
pub fn parse_ask(text: &str) -> Result<Ask, AskError> {
    let fail = |problem| AskError { text: text.chars().take(80).collect(), problem };
    if text.trim().is_empty() {
        return Err(fail("nothing"));
    }
    if text.trim().len() > TEXT_BYTES_MAX || text.trim().chars().any(char::is_control) {
        return Err(fail("more than a line of 128 bytes"));
    }
    let plain = in_ascii(text).map_err(fail)?;
    let trimmed = plain.trim();
    if trimmed.starts_with(['-', '+']) {
        return Err(fail("a size with a sign"));
    }
    let (name, number) = resource_name::split(trimmed);
    let known = PluginResource::of(name).map_err(fail)?;
    match (known, number) {
        (Some(resource), number) => resource.ask(number).map_err(fail),
        (None, None) => part(trimmed).map_err(fail),
        (None, Some(number)) => {
            let count = resource_name::whole_number(number).map_err(fail)?;
            Ok(Ask { count, ..part(name).map_err(fail)? })
        }
    }
}

/// Reads an ask without a count.
fn part(text: &str) -> Result<Ask, &'static str> {
    let of = |part, model: &str| Ask { model: Some(model.trim().to_owned()), ..Ask::one(part) };
    if let Some(ask) = memory_and_compute(text)? {
        return Ok(ask);
    }
    if let Some(part) = amount(text)? {
        return Ok(Ask::one(part));
    }
    if let Some((first, rest)) = text.split_once(char::is_whitespace)
        && let Some(part) = amount(first)?
    {
        let rest = rest.trim_start();
        let model = rest.split_once(char::is_whitespace).filter(|(of, _)| of.eq_ignore_ascii_case("of"));
        return Ok(of(part, model.map_or(rest, |(_, model)| model)));
    }
    // A number behind the model belongs to its name (`RTX PRO 6000`, `910B4-1`), a fraction does not.
    let is_separator = |c: char| c == '-' || c.is_whitespace();
    let split_at_end = text.rfind(is_separator);
    if let Some((model, last)) =
        split_at_end.map(|at| (&text[..at], text[at..].trim_start_matches(is_separator)))
        && !model.trim().is_empty()
        && last.parse::<u64>().is_err()
        && let Some(part) = amount(last)?
    {
        return Ok(of(part, model));
    }
    Ok(Ask::one(AskedPart::Named(text.to_owned())))
}

/// An amount of memory and a percentage among the words: a share of both.
fn memory_and_compute(text: &str) -> Result<Option<Ask>, &'static str> {
    let (mut memory, mut compute, mut model) = (None, None, Vec::new());
    for word in text.split_whitespace() {
        match amount(word) {
            Ok(Some(AskedPart::Memory(found))) if memory.is_none() => memory = Some(found),
            // A bare number is no percentage.
            Ok(Some(AskedPart::Fraction(found))) if compute.is_none() && number(word).is_none() => {
                compute = Some(found);
            }
            _ if ["of", "and"].iter().any(|filler| word.eq_ignore_ascii_case(filler)) => {}
            _ => model.push(word),
        }
    }
    let (Some(memory), Some(compute)) = (memory, compute) else { return Ok(None) };
    let hundredths = 100 * u64::from(compute.numerator());
    let percent = hundredths / u64::from(compute.denominator());
    let whole = hundredths % u64::from(compute.denominator()) == 0;
    let cores = u8::try_from(percent).ok().and_then(Cores::new).filter(|_| whole);
    let cores = cores.ok_or("compute that is not a whole percentage")?;
    let model = Some(model.join(" ")).filter(|model| !model.is_empty());
    Ok(Some(Ask { model, ..Ask::one(AskedPart::Share { memory, cores }) }))
}

/// Finds what of each model answers the ask, in the order of the models.
///
/// # Errors
/// No model goes by the name, or none has such a part; the error lists what there is.
pub fn resolve(ask: &Ask, models: &[&CardModel]) -> Result<Vec<FractionMatch>, ResolveError> {
    let of_vendor = |model: &&CardModel| ask.vendor.is_none_or(|vendor| model.vendor.as_str() == vendor);
    let models: Vec<&CardModel> = models.iter().copied().filter(of_vendor).collect();
    let models = models.as_slice();
    let candidates = match &ask.model {
        None => models.to_vec(),
        Some(text) => called(models.iter().copied(), text),
    };
    if candidates.is_empty() {
        let text = ask.model.clone().unwrap_or_else(|| ask.to_string());
        return Err(ResolveError::Unknown { text, known: known(models) });
    }
    let choose = |model: &CardModel| match ask.part {
        AskedPart::Fraction(fraction) => by_fraction(model, fraction),
        AskedPart::Memory(memory) => by_memory(model, memory),
        AskedPart::Share { memory, cores } => share(model, memory, cores),
        AskedPart::ShareOf { memory, cores } => share(model, part_of_memory(model, memory), cores),
        AskedPart::Nominal(memory) => nominal::choice(model, memory),
        AskedPart::Named(_) => None,
    };
    if let AskedPart::Named(text) = &ask.part {
        return by_name(text, models);
    }
    let answers = matches(&candidates, choose);
    if answers.is_empty() {
        let offers = candidates.iter().map(|m| offers(m)).collect();
        return Err(ResolveError::NoSuchPart { asked: ask.to_string(), offers });
    }
    Ok(answers)
}

/// The shares that are exactly the fraction or the amount of memory, of models that a template answers as well.
#[must_use]
pub fn shares_beside_templates(ask: &Ask, models: &[&CardModel]) -> Vec<FractionMatch> {
    let candidates = match &ask.model {
        None => models.to_vec(),
        Some(text) => called(models.iter().copied(), text),
    };
    matches(&candidates, |model| match ask.part {
        AskedPart::Fraction(fraction) if fraction != Fraction::WHOLE => share_of(model, fraction),
        AskedPart::Memory(memory) if memory != model.memory => share(model, memory, Cores::NONE),
        _ => None,
    })
}

fn matches(
    models: &[&CardModel],
    choose: impl Fn(&CardModel) -> Option<FractionChoice>,
) -> Vec<FractionMatch> {
    let of = |model: &&CardModel| Some(FractionMatch { model: model.id.clone(), choice: choose(model)? });
    models.iter().filter_map(of).collect()
}

/// A fraction, a percentage, a decimal, an amount of memory, or `1` for the whole; `None` for anything else.
fn amount(text: &str) -> Result<Option<AskedPart>, &'static str> {
    const TOO_MUCH: &str = "nothing, or more than a card";
    let fraction = |numerator, denominator| {
        Fraction::new(numerator, denominator).map(|f| Some(AskedPart::Fraction(f))).ok_or(TOO_MUCH)
    };
    if let Some((numerator, denominator)) = text.split_once('/')
        && let (Some(numerator), Some(denominator)) = (number(numerator), number(denominator))
    {
        return fraction(numerator, denominator);
    }
    if let Some(count) = number(text) {
        let whole = (count == 1).then_some(AskedPart::Fraction(Fraction::WHOLE));
        return whole.map(Some).ok_or("a number of cards, which is the count of a request");
    }
    let (decimal, parts) = text.strip_suffix('%').map_or((text, 1), |percent| (percent, 100));
    let (whole, decimals) = decimal.split_once('.').unwrap_or((decimal, "0"));
    let all_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if all_digits(whole) && all_digits(decimals) {
        if decimals.len() > DECIMALS_MAX {
            return Err("more than four decimals");
        }
        let scale = 10_u32.pow(u32::try_from(decimals.len()).unwrap_or(0));
        let numerator = number(whole)
            .and_then(|whole| whole.checked_mul(scale)?.checked_add(number(decimals)?))
            .ok_or(TOO_MUCH)?;
        return fraction(numerator, parts * scale);
    }
    if text.bytes().all(|b| b.is_ascii_digit() || b"/%.,:".contains(&b)) {
        return Err("a fraction that cannot be read");
    }
    // `310P` is a chip, not 310 peta: only the suffixes that memory has.
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let is_memory = is_of_memory(&text[digits.len()..]);
    let quantity = is_memory.then(|| Quantity::typed(text).ok()).flatten();
    match quantity.map(|q| u64::try_from(q.units_rounded_up())) {
        None => Ok(None),
        Some(Ok(bytes)) if (1..Bytes::MIB.0).contains(&bytes) => {
            Err("less than 1Mi of memory, which a share has at least")
        }
        Some(Ok(bytes)) if bytes > 0 => Ok(Some(AskedPart::Memory(Bytes(bytes)))),
        Some(_) => Err("no memory, or less than none"),
    }
}

/// A whole number in digits alone.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()))
}

fn by_fraction(model: &CardModel, wanted: Fraction) -> Option<FractionChoice> {
    if wanted == Fraction::WHOLE {
        return Some(FractionChoice::Whole);
    }
    let mut templates: Vec<&Template> = templates(model).filter(|t| t.fraction == wanted).collect();
    templates.sort_by_key(|t| t.compute_distance());
    if !templates.is_empty() {
        return Some(FractionChoice::Templates(templates.into_iter().map(|t| t.name.clone()).collect()));
    }
    share_of(model, wanted)
}

/// The share of a card that is this fraction, both rounded down so that equal shares fit beside each other.
fn share_of(model: &CardModel, wanted: Fraction) -> Option<FractionChoice> {
    let percent = 100 * u64::from(wanted.numerator()) / u64::from(wanted.denominator());
    let memory = part_of_memory(model, wanted);
    let cores = Cores::new(u8::try_from(percent).ok()?)?;
    // A part below 1 % or 1Mi could not be held to anything.
    (cores > Cores::NONE && memory > Bytes(0)).then(|| share(model, memory, cores))?
}

/// A part of a card's memory, rounded down to 1Mi.
fn part_of_memory(model: &CardModel, part: Fraction) -> Bytes {
    let (numerator, denominator) = (u128::from(part.numerator()), u128::from(part.denominator()));
    let memory = u128::from(model.memory.0) * numerator / denominator;
    // At most all of the card.
    Bytes(u64::try_from(memory).unwrap_or(model.memory.0) / Bytes::MIB.0 * Bytes::MIB.0)
}

fn by_memory(model: &CardModel, wanted: Bytes) -> Option<FractionChoice> {
    if wanted == model.memory {
        return Some(FractionChoice::Whole);
    }
    let exact: Vec<TemplateName> =
        templates(model).filter(|t| t.memory == wanted).map(|t| t.name.clone()).collect();
    if !exact.is_empty() {
        return Some(FractionChoice::Templates(exact));
    }
    share(model, wanted, Cores::NONE)
}

/// A share of a card on which shares are held, its memory rounded up to 1Mi.
fn share(model: &CardModel, memory: Bytes, cores: Cores) -> Option<FractionChoice> {
    let memory = Bytes(memory.0.checked_next_multiple_of(Bytes::MIB.0)?);
    let holds = memory > Bytes(0) && memory <= model.memory && model.shareable == ShareSupport::Enforceable;
    holds.then_some(FractionChoice::Share { memory, cores })
}

/// A model alone is the whole card; else a template, alone or with a model before or behind it.
fn by_name(text: &str, models: &[&CardModel]) -> Result<Vec<FractionMatch>, ResolveError> {
    let resource = chips_of_one_resource(models, text);
    let whole = if resource.is_empty() { called(models.iter().copied(), text) } else { resource };
    if !whole.is_empty() {
        let answer = |m: &CardModel| FractionMatch { model: m.id.clone(), choice: FractionChoice::Whole };
        return Ok(whole.into_iter().map(answer).collect());
    }
    let splits =
        text.match_indices(char::is_whitespace).map(|(at, _)| (text[..at].trim(), text[at..].trim()));
    let mut answers = with_template(text, models);
    for (before, behind) in splits {
        for (model, template) in [(before, behind), (behind, before)] {
            if answers.is_empty() {
                answers = with_template(template, &called(models.iter().copied(), model));
            }
        }
    }
    if answers.is_empty()
        && let Some(resource) = ResourceName::of(text)
    {
        let meant: Vec<&CardModel> = models.iter().copied().filter(|m| resource.is_about(m)).collect();
        answers = with_template_like(&meant, |name| resource.is_template(name));
    }
    if answers.is_empty() {
        return Err(ResolveError::Unknown { text: text.to_owned(), known: known(models) });
    }
    Ok(answers)
}

fn with_template(name: &str, models: &[&CardModel]) -> Vec<FractionMatch> {
    with_template_like(models, |spelling| spelling.eq_ignore_ascii_case(name))
}

/// Of each model the first template with a spelling that will do.
fn with_template_like(models: &[&CardModel], will_do: impl Fn(&str) -> bool) -> Vec<FractionMatch> {
    let of = |model: &&CardModel| {
        let is_it = |t: &&Template| {
            let mut spellings = std::iter::once(&t.name).chain(&t.aliases);
            spellings.any(|s| will_do(s.as_str()))
        };
        let template = templates(model).find(is_it)?.name.clone();
        Some(FractionMatch { model: model.id.clone(), choice: FractionChoice::Templates(vec![template]) })
    };
    models.iter().filter_map(of).collect()
}

fn known(models: &[&CardModel]) -> Vec<String> {
    let names = models.iter().map(|m| m.id.to_string());
    let templates = models.iter().flat_map(|m| templates(m)).map(|t| t.name.to_string());
    let mut known: Vec<String> = names.collect();
    for template in templates {
        if !known.contains(&template) {
            known.push(template);
        }
    }
    known
}

fn offers(model: &CardModel) -> ModelOffers {
    let mut parts: Vec<(Fraction, Vec<TemplateName>)> = Vec::new();
    for template in templates(model) {
        match parts.iter_mut().find(|(fraction, _)| *fraction == template.fraction) {
            Some((_, names)) => names.push(template.name.clone()),
            None => parts.push((template.fraction, vec![template.name.clone()])),
        }
    }
    parts.sort_by_key(|(fraction, _)| *fraction);
    let shares_of = (model.shareable == ShareSupport::Enforceable).then_some(model.memory);
    ModelOffers { model: model.id.clone(), parts, shares_of }
}

#[cfg(test)]
mod tests;
