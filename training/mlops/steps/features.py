"""Features: fit the feature or token set on the training split, store every split as shards, with state and code."""

from __future__ import annotations

from mlops.code import bundle, load_attribute, recipe_folder
from mlops.contract.refs import DatasetRef, FeaturesRef, ValidationRef, canonical_json
from mlops.contract.sections.features import Features
from mlops.contract.step import BadConfigError
from mlops.data.snapshots.snapshot import Snapshot
from mlops.data.snapshots.splits import SPLITS
from mlops.features.fitted import as_feature_set
from mlops.features.materialise import materialise
from mlops.features.token_set import TokenSet
from mlops.steps import StepContext


def run(context: StepContext) -> FeaturesRef:
    config = context.section(Features)
    parent = context.input.ref
    assert isinstance(parent, ValidationRef), "features follow a validation"
    home = context.deployment.home
    definition = load_attribute(config.feature_set, home)
    if isinstance(definition, TokenSet) and config.online is not None:
        raise BadConfigError(
            f"features.online: {config.feature_set} is a TokenSet, which has no rows to look up; remove online"
        )
    code = context.publish("code.zip", bundle(recipe_folder(home, config.feature_set)))

    snapshot = Snapshot.open(context.store, parent.ancestor(DatasetRef))
    tables = {name: snapshot.table(name, cache=context.scratch) for name in SPLITS}
    if isinstance(definition, TokenSet):
        if config.sample is not None:
            raise BadConfigError(
                f"features.sample: {config.feature_set} is a TokenSet, whose documents lie end to end; remove sample"
            )
        from mlops.features.tokenise import tokenise  # and with it torch, two seconds

        made = tokenise(context.store, context.place, definition, tables, code)
    else:
        features, event_time = as_feature_set(definition, config.feature_set), snapshot.manifest.event_time
        made = materialise(
            context.store, context.place, features, tables, code, event_time, context.scratch, sample=config.sample
        )  # fmt: skip

    manifest = {
        "feature_set": config.feature_set,
        "event_time": snapshot.manifest.event_time,
        "timezone": snapshot.manifest.timezone,
        **made.manifest,
    }
    ref = FeaturesRef(
        place=context.place,
        artifacts={
            "manifest": context.publish("manifest.json", canonical_json(manifest)),
            "state": context.publish("state.json", canonical_json(made.state)),
            "code": code,
        },
        version=made.version,
        num_features=made.num_features,
        num_samples={name: part["num_samples"] for name, part in made.manifest["splits"].items()},
        parent=parent,
    )
    if config.online is not None:
        from mlops.feature_store.repository import publish  # Feast takes a second to import

        publish(context.store, ref, pipeline=context.run.pipeline, online=config.online)
    return ref
