"""A sign, a clip or an index changed in any scheme turns a test red: every mutation below, on a copy of the tree."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORRECTIONS, LOSSES = "tests/corrections", "tests/losses"

# (file, what is there, what is put instead); the text must occur exactly once.
MUTATIONS = [
    ("returns.py", "return x + tf", "return x - tf"),
    ("returns.py", "tf.math.multiply_no_nan(y, decay)", "decay * y"),
    ("returns.py", "ys[::-1]", "ys"),
    ("corrections/targets.py", "multiply_no_nan(w * tf.ones_like(v_tm1), mask_t)", "multiply_no_nan(w * tf.ones_like(v_tm1), tf.ones_like(mask_t))"),
    ("corrections/targets.py", "tf.math.multiply_no_nan(w * tf.ones_like(v_tm1), mask_t)", "w * mask_t"),
    ("corrections/targets.py", "+ discount_t * v_t - v_tm1),", "+ discount_t * v_t + v_tm1),"),
    ("corrections/targets.py", "+ discount_t * v_t - v_tm1),", "+ v_t - v_tm1),"),
    ("corrections/targets.py", "decay_t=discount_t * c_tm1", "decay_t=c_tm1"),
    ("corrections/targets.py", "initial=tf.zeros_like(v_tm1[0])", "initial=tf.ones_like(v_tm1[0])"),
    ("corrections/targets.py", "[correction_tm1[1:], tf.zeros_like(correction_tm1[:1])]", "[correction_tm1[:-1], tf.zeros_like(correction_tm1[:1])]"),
    ("corrections/targets.py", "(pg_trace_tm1 * next_correction_t, discount_t)", "(next_correction_t, discount_t)"),
    ("corrections/targets.py", "(pg_trace_tm1 * next_correction_t, discount_t)", "(pg_trace_tm1 * next_correction_t, 1.0)"),
    ("corrections/targets.py", "r_t + discount_t * v_t + tf", "r_t + v_t + tf"),
    ("corrections/targets.py", "tf.stop_gradient(v_tm1 + correction_tm1 + poison_tm1)", "v_tm1 + correction_tm1 + poison_tm1"),
    ("corrections/targets.py", "tf.stop_gradient(v_tm1 + correction_tm1 + poison_tm1)", "tf.stop_gradient(v_tm1 + correction_tm1)"),
    ("corrections/targets.py", "tf.stop_gradient(mask_t * pg_weight_tm1", "tf.stop_gradient(pg_weight_tm1"),
    ("corrections/targets.py", "(q_tm1 - v_tm1) + poison_tm1", "(q_tm1 - v_tm1)"),
    ("corrections/targets.py", "(q_tm1 - v_tm1) + poison_tm1", "(v_tm1 - q_tm1) + poison_tm1"),
    ("corrections/targets.py", "tf.exp(tf.minimum(log_rho, math.log(clip)))", "tf.minimum(tf.exp(log_rho), clip + 0.1)"),
    ("corrections/targets.py", "tf.exp(tf.minimum(log_rho, math.log(clip)))", "tf.exp(tf.maximum(log_rho, math.log(clip)))"),
    ("corrections/targets.py", "tf.exp(tf.minimum(log_rho, math.log(clip)))", "tf.exp(log_rho)"),
    ("corrections/targets.py", "if clip == 0.0:", "if clip == -1.0:"),
    ("corrections/checks.py", "if clip_c > clip_rho and", "if clip_c < clip_rho and"),
    ("corrections/checks.py", "if not 0.0 <= lambda_ <= 1.0:", "if not 0.0 <= lambda_:"),
    ("corrections/none.py", "c_tm1=1.0", "c_tm1=0.9"),
    ("corrections/none.py", "rho_tm1=1.0, c", "rho_tm1=1.1, c"),
    ("corrections/one_step_is.py", 'clipped_exp(log_rho_tm1, clip_pg, "clip_pg")', "1.0"),
    ("corrections/one_step_is.py", "rho_tm1=1.0, c_tm1=1.0", "rho_tm1=clipped_exp(log_rho_tm1, clip_pg), c_tm1=1.0"),
    ("corrections/vtrace.py", "rho_tm1=clipped_exp(log_rho_tm1, clip_rho)", "rho_tm1=clipped_exp(log_rho_tm1, clip_c)"),
    ("corrections/vtrace.py", "clipped_exp(log_rho_tm1, clip_c)", "clipped_exp(log_rho_tm1, clip_rho)"),
    ("corrections/vtrace.py", 'clipped_exp(log_rho_tm1, clip_pg, "clip_pg")', "clipped_exp(log_rho_tm1, clip_rho)"),
    ("corrections/vtrace.py", "c_tm1=lambda_ * ", "c_tm1="),
    ("corrections/vtrace.py", 'lambda_ if pg_bootstrap == "mixed" else 1.0', "1.0"),
    ("corrections/vtrace.py", 'lambda_ if pg_bootstrap == "mixed" else 1.0', "lambda_"),
    ("corrections/vtrace_c0.py", "clip_c=0.0", "clip_c=min(1.0, clip_rho)"),
    ("corrections/vtrace_c0.py", "clip_pg=clip_pg", "clip_pg=clip_rho"),
    ("corrections/vtrace_unweighted_pg.py", "pg_weight_tm1=1.0", "pg_weight_tm1=clipped_exp(log_rho_tm1, clip_rho)"),
    ("corrections/vtrace_unweighted_pg.py", "pg_trace_tm1=lambda_", "pg_trace_tm1=1.0"),
    ("corrections/leaky_vtrace.py", "alpha * clipped + (1.0 - alpha)", "(1.0 - alpha) * clipped + alpha"),
    ("corrections/leaky_vtrace.py", "rho_tm1=leaky(alpha_rho, clip_rho", "rho_tm1=leaky(alpha_c, clip_rho"),
    ("corrections/leaky_vtrace.py", "leaky(alpha_c, clip_c", "leaky(alpha_rho, clip_c"),
    ("corrections/leaky_vtrace.py", "pg_weight_tm1=leaky(alpha_rho, clip_pg", "pg_weight_tm1=leaky(1.0, clip_pg"),
    ("corrections/leaky_vtrace.py", "if alpha_rho > alpha_c", "if alpha_rho < alpha_c"),
    ("corrections/per_decision_is.py", "baseline_tm1 = rho_tm1 * v_tm1 if control_variate", "baseline_tm1 = rho_tm1 * v_tm1 if not control_variate"),
    ("corrections/per_decision_is.py", "decay_t=mask_t * discount_t * rho_tm1", "decay_t=mask_t * discount_t"),
    ("corrections/per_decision_is.py", "pg_weight_tm1=rho_tm1", "pg_weight_tm1=1.0"),
    ("corrections/full_is.py", "x_t=mask_t * log_rho_tm1", "x_t=log_rho_tm1 - 1.0"),
    ("corrections/full_is.py", "decay_t=mask_t * goes_on_t", "decay_t=mask_t"),
    ("corrections/full_is.py", "decay_t=mask_t * goes_on_t", "decay_t=goes_on_t"),
    ("corrections/full_is.py", "none(**arguments).target_tm1 - v_tm1)", "(none(**arguments).target_tm1 - v_tm1))"),
    ("corrections/full_is.py", "pg_weight_tm1=tf.exp(log_rho_tm1)", "pg_weight_tm1=1.0"),
    ("corrections/weighted_is.py", "axis=1)\n", "axis=0)\n"),
    ("corrections/weighted_is.py", "tf.where(mask_t != 0.0, log_weight_tm1, masked)", "log_weight_tm1"),
    ("corrections/weighted_is.py", "pg_weight_tm1=over_batch_mean(log_rho_tm1, mask_t)", "pg_weight_tm1=tf.exp(log_rho_tm1)"),
    ("corrections/td_lambda.py", "c_tm1=lambda_", "c_tm1=1.0"),
    ("corrections/td_lambda.py", "pg_trace_tm1=lambda_", "pg_trace_tm1=1.0"),
    ("corrections/upgo.py", ">= v_tm1", "<= v_tm1"),
    ("corrections/upgo.py", "[is_better_tm1[1:], ", "[is_better_tm1[:-1], "),
    ("corrections/upgo.py", "pg_trace_tm1=next_is_better_tm1", "pg_trace_tm1=1.0"),
    ("corrections/upgo.py", 'clipped_exp(log_rho_tm1, clip_pg, "clip_pg")', "1.0"),
    ("corrections/q_targets.py", "[c_tm1[1:], tf.zeros_like(c_tm1[:1])]", "[c_tm1[:-1], tf.zeros_like(c_tm1[:1])]"),
    ("corrections/q_targets.py", "discount_t * v_t - qa_tm1),", "discount_t * v_t + qa_tm1),"),
    ("corrections/q_targets.py", "x_t=mask_t * (r_t", "x_t=(r_t"),
    ("corrections/q_targets.py", "(next_c_tm1, mask_t * discount_t)", "(next_c_tm1, discount_t)"),
    ("corrections/q_targets.py", "tf.math.multiply_no_nan(next_c_tm1, mask_t * discount_t)", "mask_t * discount_t * next_c_tm1"),
    ("corrections/q_targets.py", "tf.where(is_arbitrary, tensors", "tf.where(False, tensors"),
    ("corrections/targets.py", "tf.where(is_arbitrary, tf", "tf.where(False, tf"),
    ("corrections/q_targets.py", "mask_t * tf.exp(log_rho_tm1) *", "mask_t *"),
    ("corrections/q_targets.py", "taken(log_pi_tm1, a_tm1) - taken(log_mu_tm1, a_tm1)", "taken(log_mu_tm1, a_tm1) - taken(log_pi_tm1, a_tm1)"),
    ("corrections/retrace.py", "clipped_exp(log_rho, 1.0)", "clipped_exp(log_rho, 2.0)"),
    ("corrections/retrace.py", "lambda_ * clipped", "clipped"),
    ("corrections/tree_backup.py", "tf.exp(log_pi)", "tf.exp(log_rho)"),
    ("corrections/q_lambda.py", "lambda_ * tf.ones_like(log_rho)", "tf.ones_like(log_rho)"),
    ("corrections/importance_sampling.py", "tf.exp(log_rho)", "tf.minimum(tf.exp(log_rho), 1.0)"),
    ("corrections/acer.py", "tf.minimum(log_pi_tm1, log_mu", "tf.maximum(log_pi_tm1, log_mu"),
    ("corrections/acer.py", "log_mu_tm1 + log_truncation", "log_mu_tm1 - log_truncation"),
    ("corrections/acer.py", "left_over * (q_tm1 - v_tm1", "left_over * (v_tm1[..., None] * 0 + q_tm1 + v_tm1"),
    ("corrections/acer.py", "clipped_exp(log_rho_tm1, truncation)", "clipped_exp(log_rho_tm1, 1.0)"),
    ("corrections/acer.py", "axis=-1, keepdims=True) - delta", "axis=-1, keepdims=True) + delta"),
    ("losses/__init__.py", '(impact, "vtrace", has', '(impact, "none", has'),
    ("losses/__init__.py", '(laser, "vtrace")', '(laser, "td_lambda")'),
    ("losses/__init__.py", '(epsilon_add, "none")', '(epsilon_add, "vtrace")'),
    ("losses/epsilon.py", "tf.exp(log_pi) + epsilon", "tf.exp(log_pi) + 2 * epsilon"),
    ("losses/epsilon.py", "tf.maximum(log_pi, tf.math.log(epsilon))", "tf.minimum(log_pi, tf.math.log(epsilon))"),
    ("losses/epsilon.py", "* safe_log(rows.pi_tm1), axis=-1)", "* rows.pi_tm1, axis=-1)"),
    ("losses/ppo_clip.py", "tf.minimum(free, clipped)", "tf.maximum(free, clipped)"),
    ("losses/ppo_clip.py", "1.0 - clip, 1.0 + clip", "1.0 - clip, 1.0 + 2 * clip"),
    ("losses/ppo_clip.py", "rows.log_taken(rows.pi_tm1) - tf.stop_gradient(rows.log_taken(rows.mu_tm1))", "rows.log_taken(rows.pi_tm1)"),
    ("losses/impact.py", "math.log(ratio_max)", "ratio_max"),
    ("losses/impact.py", "log_mu - log_target", "log_target - log_mu"),
    ("losses/impact.py", "tf.stop_gradient(rows.log_taken(rows.pi_target_tm1))", "rows.log_taken(rows.pi_target_tm1)"),
    ("losses/clear.py", "rows.is_replayed * (policy", "(policy"),
    ("losses/clear.py", "kl(rows.mu_tm1, rows.pi_tm1)", "kl(rows.pi_tm1, rows.mu_tm1)"),
    ("losses/clear.py", "tf.square(rows.v_tm1 - rows.v_behaviour_tm1)", "tf.abs(rows.v_tm1 - rows.v_behaviour_tm1)"),
    ("losses/laser.py", "clip_rho) < trust_threshold", "clip_rho) > trust_threshold"),
    ("losses/laser.py", "(1.0 - rows.is_replayed) * entropy", "entropy"),
    ("losses/laser.py", "tf.minimum(log_mu + math.log(clip_rho), log_pi)", "tf.maximum(log_mu + math.log(clip_rho), log_pi)"),
    ("losses/laser.py", "tf.exp(log_pi) * (log_pi - implied)", "tf.exp(implied) * (implied - log_pi)"),
    ("losses/actor_critic.py", "-mask_t * objective_tm1", "mask_t * objective_tm1"),
    ("losses/actor_critic.py", "0.5 * mask_t * tf.square", "mask_t * tf.square"),
    ("losses/actor_critic.py", "- entropy_cost * sums", "+ entropy_cost * sums"),
    ("losses/actor_critic.py", "rows.log_taken(rows.pi_target_tm1)) - rows", "rows.log_taken(rows.pi_tm1)) - rows"),
    ("losses/actor_critic.py", "v_t=tf.stop_gradient(value[1:])", "v_t=tf.stop_gradient(value[:-1])"),
    ("losses/actor_critic.py", "valid_t * tf.stop_gradient(terms.is_trusted(rows))", "valid_t"),
    ("losses/telemetry.py", "fraction(rho_tm1 > clip_rho)", "fraction(rho_tm1 > clip_c)"),
    ("losses/telemetry.py", "kl(rows.mu_tm1, rows.pi_tm1)", "kl(rows.pi_tm1, rows.mu_tm1)"),
    ("losses/telemetry.py", "valid_t * (1.0 - rows.is_replayed)", "valid_t"),
    ("losses/telemetry.py", "exclusive=True", "exclusive=False"),
    ("losses/telemetry.py", "variance(target_tm1 - v_tm1)", "variance(v_tm1)"),
    ("losses/q_learning.py", "outputs.q_t if double else outputs.target_q_t", "outputs.target_q_t if double else outputs.q_t"),
    ("losses/q_learning.py", "tf.gather(outputs.target_q_t, best", "tf.gather(outputs.q_t, best"),
    ("losses/q_learning.py", "tf.stop_gradient(target_of(outputs, batch))", "target_of(outputs, batch)"),
    ("losses/q_learning.py", "exclusive=True", "exclusive=False"),
    ("losses/q_learning.py", "tf.where(is_valid > 0.0, discount_t, tf.ones_like(discount_t))", "discount_t"),
    ("losses/q_learning.py", "is_valid * before * r_t", "before * r_t"),
    ("losses/q_learning.py", "discount * batch.discount_t, outputs", "batch.discount_t, outputs"),
    ("losses/q_learning.py", "REWARD_CLIPPING[reward_clipping](batch.r_t), discount *", "batch.r_t, discount *"),
    ("losses/q_learning.py", "outputs.q if double else outputs.target_q, policy", "outputs.target_q, policy"),
    ("losses/q_learning.py", "discount_t=discount * batch.discount_t", "discount_t=discount * tf.ones_like(batch.discount_t)"),
    ("losses/q_learning.py", "log_mu_tm1=log_mu_tm1, mask_t=mask_t", "log_mu_tm1=log_mu_tm1, mask_t=None"),
    ("losses/q_learning.py", "tf.math.cumprod(mask_t, axis=0)", "mask_t"),
    ("losses/telemetry.py", "mean(tf.reduce_sum(tf.exp(log_mu) * (log_mu - log_pi), axis=-1))", "mean(tf.reduce_sum(log_mu - log_pi, axis=-1))"),
    ("losses/q_learning.py", "discount * discount_t, 1.0)", "discount, 1.0)"),
    ("losses/q_learning.py", "target - q_taken[0]), MIN", "target - q_taken[1]), MIN"),
    ("losses/importance.py", "rows * batch.importance / largest", "rows * batch.importance"),
    ("losses/importance.py", "priority = tf.abs(td_error)", "priority = td_error"),
    ("losses/r2d2.py", "tf.where(is_first[1:], 0.0, target - q_taken)", "target - q_taken"),
    ("losses/r2d2.py", "tf.argmax(outputs.q, axis", "tf.argmax(outputs.target_q, axis"),
    ("losses/r2d2.py", "where(is_first[2:], value[1:-1], target[1:-1])", "target[1:-1]"),
    ("losses/r2d2.py", "tf.stop_gradient(to_units(target_of(outputs, batch, is_first)))", "to_units(target_of(outputs, batch, is_first))"),
    ("losses/r2d2.py", "discount * batch.discount_t[burn_in:]", "batch.discount_t[burn_in:]"),
    ("losses/r2d2.py", "max_share * largest + (1.0 - max_share) * total", "max_share * largest + total"),
    ("losses/r2d2.py", "np.abs(target - q_taken[:-1])", "np.abs(target - q_taken[1:])"),
    ("losses/r2d2.py", "target_q = from_units(outputs.target_q)", "target_q = outputs.target_q"),
    ("losses/dpg.py", "-tf.reduce_sum(tf.stop_gradient(gradient)", "tf.reduce_sum(tf.stop_gradient(gradient)"),
    ("losses/dpg.py", "tape.gradient(value, at), -action", "100.0 * tape.gradient(value, at), -action"),
    ("losses/dpg.py", "target.value(outputs.last, target.policy(outputs.last))", "target.value(outputs.first, target.policy(outputs.first))"),
    ("losses/dpg.py", "tf.clip_by_value(batch.a_tm1[0], -1.0, 1.0)", "batch.a_tm1[0]"),
    ("corrections/peng_q_lambda.py", "1.0 - goes_on_t", "1.0 - lambda_"),
    ("corrections/peng_q_lambda.py", "decay_t=mask_t * discount_t * goes_on_t", "decay_t=discount_t * lambda_"),
    ("losses/rewards.py", "tf.clip_by_value(reward, -1.0, 1.0)", "reward"),
]  # fmt: skip


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tree")
    for name in ("impala", "tests", "configs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def suite(tree, *folders):
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *folders, "--ignore", f"{CORRECTIONS}/test_mutations.py"]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.parametrize("name, old, new", MUTATIONS, ids=lambda text: text[:40])
def test_every_mutation_has_its_text_once(name, old, new):
    """Fast, and always run: a list that no longer fits the code would prove nothing."""
    source = (ROOT / "impala" / name).read_text()
    assert source.count(old) == 1 and old != new


@pytest.mark.soak
def test_the_copy_is_green_without_mutation(tree):
    result = suite(tree, CORRECTIONS, LOSSES)
    assert result.returncode == 0, result.stdout[-2000:]


@pytest.mark.soak
@pytest.mark.parametrize("name, old, new", MUTATIONS, ids=lambda text: text[:40])
def test_a_mutation_turns_a_test_red(tree, name, old, new):
    path = tree / "impala" / name
    source = path.read_text()
    try:
        path.write_text(source.replace(old, new))
        folders = [LOSSES] if name.startswith("losses/") else [CORRECTIONS, LOSSES]
        result = suite(tree, *folders)
        assert result.returncode == 1, f"nobody noticed: {result.stdout[-500:]}{result.stderr[-500:]}"
    finally:
        path.write_text(source)
