#!/usr/bin/env bash
# with_python.sh "3.12 3.13" TARGET ...: make the targets with the first of these Pythons that is
# found: ${PYTHON}, in ${VENV}; or one on the PATH or of pyenv, in an environment of its own,
# ${VENV}-3.12. Says so in a line where there is none.
set -euo pipefail
versions=$1
shift
python=${PYTHON:-python3} venv=${VENV:-.venv}

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2> /dev/null || true; }

found=$(version_of "${python}")
if [[ -z ${found} || " ${versions} " != *" ${found} "* ]]; then
  found=
  for version in ${versions}; do
    for python in "python${version}" "${PYENV_ROOT:-${HOME}/.pyenv}/versions/${version}".*/bin/python; do
      # a shim of pyenv's may stand for a Python that is not there
      [[ $(version_of "${python}") != "${version}" ]] || { found=${version} && break 2; }
    done
  done
  venv+=-${found}
fi
if [[ -z ${found} ]]; then
  echo "make: no Python of ${versions// /, } on the PATH or in pyenv; left out: $*"
  exit
fi
echo "make: $* with Python ${found} (${python}) in ${venv}"
exec "${MAKE:-make}" --no-print-directory PYTHON="${python}" VENV="${venv}" "$@"
