# shellcheck shell=bash
# The Python that the recipe runs with: of VENV=DIR where that is given, of an activated
# environment, or ${PYTHON}; and the repository's code before an installed copy of it.
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
if [ -n "${VENV:-}" ]; then
    # a relative folder is seen from here, or from the top of the repository as `make` sees it
    for folder in "${VENV}" "${repository}/${VENV}"; do
        [ -x "${folder}/bin/python3" ] && break
    done
    [ -x "${folder}/bin/python3" ] || { echo "path.sh: error: no bin/python3 in VENV=${VENV}" >&2; exit 1; }
    PATH=$(cd "${folder}/bin" && pwd):${PATH}
    PYTHON=python3
fi
export PATH
export PYTHON=${PYTHON:-python3}
export PYTHONPATH=${repository}:${repository}/egs2/TEMPLATE/lm${PYTHONPATH:+:${PYTHONPATH}}
export PYTHONIOENCODING=UTF-8
export LC_ALL=C.UTF-8
